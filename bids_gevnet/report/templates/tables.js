(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const box = document.querySelector("[data-people]");
  if (box === null) return;
  const body = box.querySelector("tbody");

  // Of very many scans only the first rows stand in the page; all of them lie beside, compressed.
  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const holder = document.createElement("template");
    holder.innerHTML = (await new Response(plain).json()).join("");
    return all("tr", holder.content);
  };
  const begin = (rows) => {
    const size = Number(box.dataset.pageSize) || Infinity;
    const paged = rows.length > size;
    if (paged) body.replaceChildren(...rows.slice(0, size));
    const keyed = new Map();
    const rowOf = new Map(rows.map((row) => [row.dataset.p, row]));
    for (const node of [...rows, ...all("[data-p]")]) {
      const list = keyed.get(node.dataset.p) ?? [];
      if (!list.includes(node)) list.push(node);
      keyed.set(node.dataset.p, list);
    }
    const nameOf = (key) => rowOf.get(key)?.querySelector(".pin").getAttribute("aria-label").replace(/^Mark /, "") ?? key;

    // Pages: the rows that fit the filters, in the order of the sorted column, some at a time.
    const turner = box.querySelector("[data-pages]");
    let page = 0;
    let fitting = rows;
    const turn = (to) => {
      if (!paged) return;
      const last = Math.max(0, Math.ceil(fitting.length / size) - 1);
      page = Math.max(0, Math.min(last, to));
      const part = fitting.slice(page * size, (page + 1) * size);
      body.replaceChildren(...part);
      box.querySelector(".tall").scrollTop = 0;
      turner.querySelector("[data-page-state]").textContent = part.length ? `Rows ${page * size + 1} to ${page * size + part.length} of ${fitting.length}` : "";
      for (const button of all("[data-page]", turner)) button.disabled = Number(button.dataset.page) < 0 ? page === 0 : page === last;
    };
    if (paged) {
      turner.hidden = false;
      for (const button of all("[data-page]", turner)) button.addEventListener("click", () => turn(page + Number(button.dataset.page)));
    }

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
        const values = new Map(rows.map((row) => [row, value(row)]));
        rows.sort((one, other) => {
          const [a, b] = [values.get(one), values.get(other)];
          if (a === "" || b === "") return (a === "") - (b === "");
          return down ? compare(b, a) : compare(a, b);
        });
        if (paged) { fitting = rows.filter((row) => !row.hidden); turn(0); } else body.append(...rows);
      });
    }

    // Filters: rows are hidden; dots and pictures of those people fade.
    const form = box.querySelector("[data-filters]");
    const state = box.querySelector("[data-filter-state]");
    const field = (name) => form.querySelector(`[data-filter="${name}"]`);
    const texts = new Map();
    const wordsOf = (row) => {
      if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
      return texts.get(row);
    };
    const fits = (row) => {
      const text = field("text").value.trim().toLowerCase();
      if (text && !wordsOf(row).includes(text)) return false;
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
      fitting = rows.filter((row) => !row.hidden);
      turn(0);
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
      told.textContent = `${nameOf(key)}: ${values.join(", ") || "in no plot far from the others of its site"}`;
    };
    const mark = (key) => {
      const button = rowOf.get(key).querySelector(".pin");
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
        if (dots.length === 0) return;
        const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
        if (event.key === "Enter" && lit !== null) mark(lit);
        else if (step !== undefined) light(dots[Math.max(0, Math.min(dots.length - 1, dots.indexOf(lit) + step))]);
        else if (event.key === "Home") light(dots[0]);
        else if (event.key === "End") light(dots[dots.length - 1]);
        else return;
        event.preventDefault();
      });
    }
    box.scans = rows;
    box.dispatchEvent(new Event("scans"));
  };
  const packed = box.querySelector("[data-rows]");
  if (packed === null) begin(all("tr", body));
  else {
    unpack(packed.content.textContent).then((rows) => {
      box.querySelector("[data-first-page]").hidden = true;
      packed.remove();
      begin(rows);
    }, () => begin(all("tr", body)));  // a browser that cannot unpack keeps the first rows
  }
})();
