// Draws the charts in the colours of the reader's theme, and the times of the case that the reader chooses.
(() => {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const specs = read("specs");
  const configs = read("configs");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const caseChoice = document.getElementById("latency-case");
  const kindChoice = document.getElementById("latency-kind");

  function measured() {
    const rows = [];
    for (const line of document.getElementById("rows-data").textContent.split("\n")) {
      // Python writes NaN in rows that failed, which is no JSON; those have no times to draw.
      try { rows.push(JSON.parse(line)); } catch { /* not a row with times */ }
    }
    const backends = new Set(JSON.parse(document.body.dataset.backends)); // all but controls
    return rows.filter((row) => row.kind === "measured" && backends.has(row.backend));
  }
  const rows = measured();

  async function draw(id, place = document.getElementById(id), datasets = null) {
    if (!place) return;
    const spec = datasets ? { ...specs[id], datasets } : structuredClone(specs[id]);
    const theme = dark.matches ? "dark" : "light";
    // SVG where cells carry the page's patterns; canvas where there may be thousands of samples.
    const renderer = place.id === "latency" ? "canvas" : "svg";
    const tooltip = { theme };
    await vegaEmbed(place, spec, { mode: "vega-lite", config: configs[theme], renderer, actions: false, tooltip });
    place.dataset.drawn = theme;
  }

  // Spreads a strip's samples over its height in a fixed order, so that the same report always looks the same.
  const jitter = (place) => ((place * 0.61803) % 1) * 2 - 1;

  function drawLatency() {
    if (!caseChoice) return Promise.resolve();
    const kind = kindChoice.value;
    const samples = [];
    const kept = [];
    let outliers = 0;
    for (const row of rows.filter((row) => row.case === caseChoice.value && row.timings[kind])) {
      const timing = row.timings[kind];
      const taken = timing.rounds.flat();
      outliers += timing.outliers;
      taken.forEach((time, place) => samples.push({ backend: row.backend, time, jitter: jitter(place) }));
      kept.push({ backend: row.backend, p50: timing.p50, p95: timing.p95 });
    }
    document.getElementById("latency-note").textContent = samples.length
      ? `${samples.length} samples, all of them shown; ${outliers} labelled as outliers. Boxes: quartiles, whiskers to 1.5 times their distance.`
      : kept.length
        ? "The samples were not kept: bars run from p50 to p95."
        : `No ${kind} times were taken of this case.`;
    const place = document.getElementById("latency");
    return samples.length ? draw("latency", place, { samples }) : draw("latency-kept", place, { kept });
  }

  function chooseKind() {
    if (!kindChoice) return;
    const kinds = new Set(rows.flatMap((row) => Object.keys(row.timings)));
    for (const option of [...kindChoice.options]) if (!kinds.has(option.value)) option.remove();
  }

  function drawAll() {
    const drawn = [drawLatency(), ...Object.keys(specs).filter((id) => !id.startsWith("latency")).map((id) => draw(id))];
    return Promise.all(drawn).then(() => {
      document.body.dataset.charts = dark.matches ? "dark" : "light";
      document.dispatchEvent(new Event("drawn"));
    });
  }

  chooseKind();
  caseChoice?.addEventListener("change", drawLatency);
  kindChoice?.addEventListener("change", drawLatency);
  dark.addEventListener("change", drawAll);
  drawAll();
})();
