// Filters, sorts and cites the rows of the table, and hands out the data that the page carries.
(() => {
  "use strict";
  const body = document.querySelector("#rows tbody");
  const lines = [...body.rows];
  const texts = new Map(lines.map((line) => [line, line.textContent.toLowerCase() + " " + line.dataset.case.toLowerCase()]));
  const form = document.getElementById("filters");
  const text = document.getElementById("filter-text");
  const choices = [...form.querySelectorAll("[data-filter]")];

  function filter() {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const line of lines) {
      const fits =
        choices.every((choice) => !choice.value || line.dataset[choice.dataset.filter] === choice.value) &&
        words.every((word) => texts.get(line).includes(word));
      line.hidden = !fits;
      shown += fits;
    }
    document.getElementById("shown").textContent =
      shown === lines.length ? `${shown} rows` : `${shown} of ${lines.length} rows`;
    document.getElementById("nothing").hidden = shown > 0;
  }

  function compare(a, b) {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  }

  function sort(button) {
    const head = button.closest("th");
    const column = Number(button.dataset.column);
    // A first press shows what one looks for first: names from A on, numbers from the largest on.
    const first = column < 3 ? "ascending" : "descending";
    const second = column < 3 ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? second : first;
    for (const other of document.querySelectorAll("#rows [aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const key = (line) => line.cells[column].dataset.sort;
    const sign = order === "ascending" ? 1 : -1;
    const sorted = [...lines].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === ""); // no value: last, either way
      return sign * compare(x, y);
    });
    body.append(...sorted);
  }

  function mark(line, words) {
    for (const other of body.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
    line?.setAttribute("aria-current", "true");
    document.getElementById("cited").textContent = words;
  }

  // The row that the address names, whatever the filters say.
  function showNamed() {
    const line = body.querySelector("tr:target");
    mark(line, line ? `This row is ${line.querySelector("[data-cite]").dataset.cite}` : "");
    if (!line) return;
    if (line.hidden) {
      form.reset();
      filter();
    }
    line.scrollIntoView({ block: "center" });
  }

  async function cite(event) {
    const link = event.target.closest("[data-cite]");
    if (!link) return;
    event.preventDefault(); // the row is in sight already
    history.replaceState(null, "", link.hash);
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(link.dataset.cite);
    } catch {
      said = "This row is"; // no clipboard for this page: it can be copied from here
    }
    mark(link.closest("tr"), `${said} ${link.dataset.cite}`);
  }

  function download(button) {
    const source = document.getElementById(button.dataset.download).textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([source], { type: button.dataset.type }));
    link.download = button.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll("[data-column]")) button.addEventListener("click", () => sort(button));
  for (const button of document.querySelectorAll("[data-download]")) button.addEventListener("click", () => download(button));
  body.addEventListener("click", cite);
  addEventListener("hashchange", showNamed);
  // Not before the charts are drawn, which move what is below them, nor before the browser has looked for the name.
  const first = (target, event) => new Promise((done) => target.addEventListener(event, done, { once: true }));
  Promise.all([first(document, "drawn"), first(window, "load")]).then(showNamed);
  filter(); // a browser may have kept a filter over a reload
})();
