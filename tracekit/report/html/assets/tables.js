// Tables that sort by a click on a column's head, and filter by a text.
const sortableTables = (() => {
  const MIN_ROWS_TO_SORT = 3, MIN_ROWS_TO_FILTER = 12;
  const UNITS = {
    ns: 1e-9, "µs": 1e-6, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, "%": 0.01, B: 1, kB: 1e3, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
    KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3,
  };

  // The number a cell shows, in base units; null if it shows none.
  function numberOf(text) {
    const found = text.replaceAll(/[\u00a0\u202f,]/g, (mark) => (mark === "," ? "" : " ")).trim()
      .match(/^[≥≤~+×]?\s*([−-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([a-zµ%]*)/i);
    if (!found) return null;
    return Number(found[1].replace("−", "-")) * (UNITS[found[2]] ?? 1);
  }

  // Rows in units that stay together: a row and the explanations below it.
  function bundles(body) {
    const all = [];
    for (const row of body.rows) if (row.classList.contains("why") && all.length) all.at(-1).push(row); else all.push([row]);
    return all;
  }

  function compare(a, b, column, direction) {
    const [rowA, rowB] = [a[0], b[0]];
    const total = rowA.classList.contains("total") - rowB.classList.contains("total");
    if (total) return total; // sums stay below
    const [textA, textB] = [rowA, rowB].map((row) => (row.cells[column]?.textContent ?? "").trim());
    const [numberA, numberB] = [numberOf(textA), numberOf(textB)];
    if (numberA !== null && numberB !== null) return direction * (numberA - numberB);
    if ((numberA === null) !== (numberB === null)) return numberA === null ? 1 : -1; // unknown values stay below
    return direction * textA.localeCompare(textB);
  }

  function makeSortable(table) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const original = bundles(body);
    heads.forEach((head, column) => {
      if (!head.textContent.trim() || head.querySelector(".unseen")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.onclick = () => {
        // First click: the largest first (text: a to z); second: the other way; third: as the page has it.
        const isText = head.classList.contains("word") || column === 0;
        const order = isText ? ["ascending", "descending", null] : ["descending", "ascending", null];
        const next = order[(order.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
        for (const other of heads) other.removeAttribute("aria-sort");
        if (next) head.setAttribute("aria-sort", next);
        const sorted = next ? [...original].sort((a, b) => compare(a, b, column, next === "ascending" ? 1 : -1)) : original;
        body.append(...sorted.flat());
        charts.announce(next ? `sorted by ${head.textContent.trim()}, ${next}` : "in the page's order");
      };
    });
  }

  function makeFilter(table) {
    const input = document.createElement("input"), caption = table.caption?.textContent.trim() ?? "";
    input.type = "search";
    input.className = "filter hands";
    input.placeholder = "filter rows";
    input.setAttribute("aria-label", `filter the rows of: ${caption.slice(0, 60) || "this table"}`);
    const none = document.createElement("p");
    none.className = "note";
    none.hidden = true;
    none.setAttribute("role", "status");
    input.oninput = () => {
      let shown = 0;
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const rows of bundles(table.tBodies[0])) {
        const text = `${rows[0].textContent} ${rows[0].cells[0]?.title ?? ""}`.toLowerCase();
        const isShown = words.every((word) => text.includes(word));
        for (const row of rows) row.classList.toggle("filtered", !isShown);
        shown += Number(isShown);
      }
      none.hidden = shown > 0;
      none.textContent = `no row has “${input.value.trim()}”`;
    };
    const place = table.closest(".scroll") || table;
    place.before(input);
    place.after(none);
  }

  function enhance(root = document) {
    for (const table of root.querySelectorAll("table")) {
      if (!table.tHead || !table.tBodies[0] || table.matches(".waterfall, .heat") || table.closest("tr.why, #details")) continue;
      const rows = bundles(table.tBodies[0]).length;
      if (rows >= MIN_ROWS_TO_SORT) makeSortable(table);
      if (rows >= MIN_ROWS_TO_FILTER) makeFilter(table);
    }
  }

  return { enhance, numberOf };
})();
