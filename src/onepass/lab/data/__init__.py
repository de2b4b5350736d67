"""The lab's nouns: cases, suites, rows, runs. Plain data, free of torch, so that a report can be made anywhere."""
