(() => {
  "use strict";
  const link = document.querySelector("[data-ratings]");
  if (link === null) return;
  const table = link.closest("[data-people]");
  const state = document.querySelector("[data-rating-state]");
  const cell = (text) => text.replace(/[\t\r\n]/g, " ");
  const begin = (rows) => {
    const boxes = rows.map((row) => row.querySelector("select[data-rate]"));
    // One row a person: whoever has a scan to exclude is excluded.
    const update = () => {
      const people = new Map();
      for (const box of boxes) {
        const own = people.get(box.dataset.rate) ?? { exclude: false, said: [] };
        own.exclude ||= box.value === "exclude";
        own.said.push(`${box.dataset.scan}: ${box.value || "not rated"}`);
        people.set(box.dataset.rate, own);
        box.closest("td").dataset.v = box.value;
      }
      const lines = [["participant_id", "exclude", "ratings"]];
      for (const [name, own] of people) lines.push([name, own.exclude ? "yes" : "no", own.said.join("; ")]);
      const text = lines.map((line) => line.map(cell).join("\t") + "\n").join("");
      link.href = `data:text/tab-separated-values;charset=utf-8,${encodeURIComponent(text)}`;
      const rated = boxes.filter((box) => box.value !== "").length;
      const out = [...people.values()].filter((own) => own.exclude).length;
      state.textContent = `${rated} of ${boxes.length} scans rated, ${out} participant${out === 1 ? "" : "s"} to exclude.`;
    };
    for (const box of boxes) box.addEventListener("change", update);
    link.closest("[hidden]").hidden = false;
    update();
  };
  // The rows of very many scans are unpacked first.
  if (table.scans === undefined) table.addEventListener("scans", () => begin(table.scans));
  else begin(table.scans);
})();
