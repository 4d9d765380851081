(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const box = document.querySelector("[data-people]");
  if (box === null) return;
  const body = box.querySelector("tbody");
  const rows = all("tr", body);
  const keyed = new Map();
  for (const node of all("[data-p]")) {
    const list = keyed.get(node.dataset.p) ?? [];
    list.push(node);
    keyed.set(node.dataset.p, list);
  }
  const nameOf = (key) => {
    const row = rows.find((node) => node.dataset.p === key);
    return row === undefined ? key : row.querySelector(".pin").getAttribute("aria-label").replace(/^Mark /, "");
  };

  // Sorting: numbers by value, words by the reader's alphabet; empty cells stay at the end.
  const words = new Intl.Collator(undefined, { numeric: true });
  for (const button of all("[data-sort]", box)) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const column = [...head.parentNode.children].indexOf(head);
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of all("[aria-sort]", box)) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.children[column].dataset.v;
      const compare = button.dataset.sort === "number" ? (a, b) => Number(a) - Number(b) : words.compare;
      const sorted = all("tr", body).sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === "" || b === "") return (a === "") - (b === "");
        return down ? compare(b, a) : compare(a, b);
      });
      body.append(...sorted);
    });
  }

  // Filters: rows are hidden; dots and pictures of those people fade.
  const form = box.querySelector("[data-filters]");
  const state = box.querySelector("[data-filter-state]");
  const field = (name) => form.querySelector(`[data-filter="${name}"]`);
  const fits = (row) => {
    const text = field("text").value.trim().toLowerCase();
    if (text && !row.textContent.toLowerCase().includes(text)) return false;
    for (const name of ["label", "site"]) if (field(name).value !== "" && row.dataset[name] !== field(name).value) return false;
    for (const name of ["wrong", "warned"]) if (field(name)?.checked && !(name in row.dataset)) return false;
    return true;
  };
  const filter = () => {
    let shown = 0;
    for (const row of rows) {
      const good = fits(row);
      row.hidden = !good;
      shown += good;
      for (const node of keyed.get(row.dataset.p)) if (node !== row) node.classList.toggle("faded", !good);
    }
    state.textContent = shown === rows.length ? `${rows.length} scans` : `${shown} of ${rows.length} scans`;
    box.querySelector("[data-empty]").hidden = shown > 0;
  };
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  filter();

  // One scan everywhere: what is pointed at lights up, what is marked stays lit.
  const told = document.querySelector("[data-strip-state]");
  let lit = null;
  const light = (key) => {
    if (key === lit) return;
    for (const node of keyed.get(lit) ?? []) node.classList.remove("lit");
    lit = key;
    for (const node of keyed.get(key) ?? []) {
      node.classList.add("lit");
      if (node.classList.contains("dot")) node.parentNode.append(node);
    }
    if (told === null) return;
    if (key === null) { told.textContent = "No scan chosen."; return; }
    const values = all(`.strips .dot[data-p="${key}"]`).map((dot) => {
      const plot = dot.closest("[data-strip]");
      return `${plot.dataset.name} ${dot.dataset.v}${plot.dataset.unit ? ` ${plot.dataset.unit}` : ""}`;
    });
    told.textContent = `${nameOf(key)}: ${values.join(", ")}`;
  };
  const mark = (key) => {
    const button = body.querySelector(`tr[data-p="${key}"] .pin`);
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    for (const node of keyed.get(key)) {
      node.classList.toggle("marked", on);
      if (on && node.classList.contains("dot")) node.parentNode.append(node);
    }
  };
  const keyAt = (event) => event.target.closest?.("[data-p]")?.dataset.p ?? null;
  for (const name of ["pointerover", "focusin"]) document.addEventListener(name, (event) => { const key = keyAt(event); if (key !== null) light(key); });
  body.addEventListener("click", (event) => { if (event.target.closest(".pin")) mark(keyAt(event)); });

  // A plot is one stop of the keyboard; arrows go through its dots by value.
  for (const plot of all("[data-strip]")) {
    const dots = all(".dot", plot).sort((a, b) => Number(a.dataset.v) - Number(b.dataset.v)).map((dot) => dot.dataset.p);
    plot.addEventListener("click", (event) => { const key = keyAt(event); if (key !== null) mark(key); });
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (event.key === "Enter" && lit !== null) mark(lit);
      else if (step !== undefined) light(dots[Math.max(0, Math.min(dots.length - 1, dots.indexOf(lit) + step))]);
      else if (event.key === "Home") light(dots[0]);
      else if (event.key === "End") light(dots[dots.length - 1]);
      else return;
      event.preventDefault();
    });
  }
})();
