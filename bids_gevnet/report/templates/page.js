(() => {
  "use strict";
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

  // Theme: the reader's choice beats the system's. A file may not be allowed to store it.
  const remember = (value) => { try { localStorage.setItem("bids_gevnet-theme", value); } catch { /* not kept */ } };
  const recall = () => { try { return localStorage.getItem("bids_gevnet-theme"); } catch { return null; } };
  for (const box of document.querySelectorAll("[data-theme-switch]")) {
    box.hidden = false;
    const apply = (value) => {
      if (value === "light" || value === "dark") document.documentElement.dataset.theme = value;
      else delete document.documentElement.dataset.theme;
    };
    const stored = box.querySelector(`input[value="${recall() === "dark" ? "dark" : recall() === "light" ? "light" : "auto"}"]`);
    stored.checked = true;
    apply(stored.value);
    box.addEventListener("change", (event) => { apply(event.target.value); remember(event.target.value); });
  }

  // Flicker: swaps two radio buttons, below three times a second; one swap per press for
  // readers who asked for less motion.
  const PERIOD_MS = 700;
  for (const box of document.querySelectorAll("[data-flicker]")) {
    const button = box.querySelector("[data-flicker-play]");
    const state = box.querySelector("[data-flicker-state]");
    const [first, second] = box.querySelectorAll('input[type="radio"]');
    let timer = null;
    const swap = () => { (first.checked ? second : first).checked = true; };
    const stop = () => { clearInterval(timer); timer = null; button.setAttribute("aria-pressed", "false"); };
    const label = () => { button.textContent = calm.matches ? "Swap" : "Flicker"; if (calm.matches) stop(); };
    button.hidden = false;
    label();
    calm.addEventListener("change", label);
    button.addEventListener("click", () => {
      if (timer !== null) { stop(); state.textContent = "Flicker stopped."; return; }
      swap();
      if (calm.matches) { state.textContent = `Showing: ${(first.checked ? first : second).parentNode.textContent.trim()}.`; return; }
      timer = setInterval(swap, PERIOD_MS);
      button.setAttribute("aria-pressed", "true");
      state.textContent = "Flickering; press again to stop.";
    });
    box.addEventListener("change", (event) => { if (event.target.type === "radio") stop(); });
    box.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
  }

  // Scenes: points in space under a rotation; marks are moved and put in order of depth.
  const STEP = Math.PI / 24;
  const SCALE = 90;
  const multiply = (a, b) => {
    const out = new Array(9).fill(0);
    for (let i = 0; i < 3; i += 1) for (let j = 0; j < 3; j += 1) for (let k = 0; k < 3; k += 1) out[3 * i + j] += a[3 * i + k] * b[3 * k + j];
    return out;
  };
  const about = (right, down) => {
    const [c, s, d, t] = [Math.cos(right), Math.sin(right), Math.cos(down), Math.sin(down)];
    return multiply([1, 0, 0, 0, d, -t, 0, t, d], [c, 0, s, 0, 1, 0, -s, 0, c]);
  };
  for (const box of document.querySelectorAll("[data-scene]")) {
    const first = box.dataset.view.split(" ").map(Number);
    const points = box.dataset.points.split(" ").map((value) => Number(value) / 1000);
    const group = box.querySelector(".marks");
    const marks = [...group.children].map((node) => ({ node, at: node.dataset.i.split(" ").map(Number), depth: 0 }));
    let view = first;
    let due = false;
    const draw = () => {
      due = false;
      const seen = new Float64Array(points.length);
      for (let i = 0; i < points.length; i += 3) {
        for (let r = 0; r < 3; r += 1) seen[i + r] = view[3 * r] * points[i] + view[3 * r + 1] * points[i + 1] + view[3 * r + 2] * points[i + 2];
      }
      const x = (i) => (SCALE * seen[3 * i]).toFixed(1);
      const y = (i) => (-SCALE * seen[3 * i + 1]).toFixed(1);
      for (const mark of marks) {
        const { node, at } = mark;
        mark.depth = at.reduce((sum, i) => sum + seen[3 * i + 2], 0) / at.length;
        if (node.tagName === "circle") {
          node.setAttribute("cx", x(at[0]));
          node.setAttribute("cy", y(at[0]));
          node.toggleAttribute("data-back", mark.depth < 0);
        } else if (node.tagName === "text") {
          node.setAttribute("x", x(at[0]));
          node.setAttribute("y", y(at[0]));
        } else if (node.tagName === "line") {
          node.setAttribute("x1", x(at[0]));
          node.setAttribute("y1", y(at[0]));
          node.setAttribute("x2", x(at[1]));
          node.setAttribute("y2", y(at[1]));
        } else {
          node.setAttribute("points", at.map((i) => `${x(i)},${y(i)}`).join(" "));
        }
      }
      marks.sort((a, b) => a.depth - b.depth);
      group.append(...marks.map((mark) => mark.node));
    };
    const turn = (right, down) => {
      view = multiply(about(right, down), view);
      if (!due) { due = true; requestAnimationFrame(draw); }
    };
    box.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
      if (event.key === "Home") view = first;
      else if (!(event.key in steps)) return;
      event.preventDefault();
      turn(...(steps[event.key] ?? [0, 0]));
    });
    let last = null;
    box.addEventListener("pointerdown", (event) => { last = [event.clientX, event.clientY]; box.setPointerCapture(event.pointerId); });
    box.addEventListener("pointermove", (event) => {
      if (last === null) return;
      turn((event.clientX - last[0]) / 100, (event.clientY - last[1]) / 100);
      last = [event.clientX, event.clientY];
    });
    for (const name of ["pointerup", "pointercancel"]) box.addEventListener(name, () => { last = null; });
  }

  // Contents: mark the section that is being read.
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const visible = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) { if (entry.isIntersecting) visible.add(entry.target.id); else visible.delete(entry.target.id); }
    const current = [...links.keys()].find((id) => visible.has(id));
    for (const [id, link] of links) { if (id === current) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); }
  }, { rootMargin: "-10% 0px -70% 0px" });
  for (const section of document.querySelectorAll("section[id]")) watch.observe(section);

  // Print everything, not only what happens to be open.
  window.addEventListener("beforeprint", () => { for (const node of document.querySelectorAll("details")) node.open = true; });
})();
