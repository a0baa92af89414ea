"use strict";
// Draws the figures of the page from the JSON in #figures, and keeps plots, controls and sliders in step.
(() => {
  const CURSOR = { color: "#d55e00", width: 1.5, dash: "solid" };
  const NARROW = 560; // a plot in space that is narrower, in pixels, has no colour bar: its height axis says the same
  const WHOLE = 505; // a plot in space that is narrower, in pixels, is a square seen from farther away
  const touch = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page, it does not zoom
  const hasSpace = Boolean(document.createElement("canvas").getContext("webgl"));
  const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: "reset", showTips: false };

  class Figure {
    constructor(spec) {
      this.spec = spec;
      this.root = document.getElementById(spec.id);
      this.plots = [...this.root.querySelectorAll(".plot")];
      this.output = this.root.querySelector("output");
      this.space = this.root.querySelector(".space");
      for (const input of this.root.querySelectorAll("input[type=radio]")) {
        input.addEventListener("change", () => this.draw());
      }
      for (const input of this.root.querySelectorAll("input[data-role^=read]")) {
        input.addEventListener("input", () => this.read());
      }
      for (const input of this.space ? this.space.querySelectorAll("input") : []) {
        input.dataset.start = input.value;
        input.addEventListener("input", () => this.turn());
      }
      this.space?.querySelector("button").addEventListener("click", () => {
        for (const input of this.space.querySelectorAll("input")) input.value = input.dataset.start;
        this.turn();
      });
      this.draw();
    }

    choice(name) {
      const found = this.root.querySelector(`input[name="${this.spec.id}-${name}"]:checked`);
      return found ? found.value : null;
    }

    key() {
      return this.spec.controls.map(([name, only]) => this.choice(name) ?? only).join("/");
    }

    role(name) {
      return this.root.querySelector(`input[data-role="${name}"]`);
    }

    draw() {
      this.panels = this.spec.views[this.key()];
      const inSpace = this.panels.some((panel) => panel.in_space);
      if (this.space) this.space.hidden = !inSpace;
      this.ready = Promise.all(this.panels.map((panel, index) => this.drawPanel(panel, this.plots[index])));
      return this.ready.then(() => this.read());
    }

    async drawPanel(panel, plot) {
      plot.previousElementSibling.textContent = panel.label;
      plot.setAttribute("aria-label", panel.alternative);
      Plotly.purge(plot);
      plot.classList.remove("failed");
      plot.textContent = "";
      if (panel.in_space && !hasSpace) {
        plot.classList.add("failed");
        plot.textContent = "3D needs WebGL, which this browser does not offer. The contours show the same values.";
        return;
      }
      plot.dataset.height ??= plot.style.height;
      plot.style.height = panel.in_space ? `min(${plot.dataset.height}, ${plot.clientWidth}px)` : plot.dataset.height;
      const layout = structuredClone(panel.layout);
      if (touch && !panel.in_space) layout.dragmode = false;
      if (panel.in_space) layout.scene.camera = this.camera(plot);
      const data = structuredClone(panel.data);
      if (panel.in_space && plot.clientWidth < NARROW) {
        for (const trace of data) (trace.type === "surface" ? trace : trace.marker ?? {}).showscale = false;
      }
      await Plotly.newPlot(plot, data, layout, config);
      if (panel.in_space) plot.on("plotly_relayout", (change) => this.follow(plot, change["scene.camera"]));
    }

    scale(plot) {
      return Math.max(1, WHOLE / plot.clientWidth) / 100;
    }

    camera(plot) {
      const [turn, tilt, distance] = ["turn", "tilt", "distance"].map((name) => Number(this.role(name).value));
      const [a, e, r] = [(turn * Math.PI) / 180, (Math.min(tilt, 89.5) * Math.PI) / 180, distance * this.scale(plot)];
      const eye = { x: r * Math.cos(e) * Math.cos(a), y: r * Math.cos(e) * Math.sin(a), z: r * Math.sin(e) };
      return { eye, center: { x: 0, y: 0, z: -0.16 }, up: { x: 0, y: 0, z: 1 } };
    }

    turn() {
      this.plots.forEach((plot, index) => {
        if (this.panels[index].in_space && hasSpace) Plotly.relayout(plot, { "scene.camera": this.camera(plot) });
      });
    }

    follow(plot, camera) {
      if (!camera) return;
      const { x, y, z } = camera.eye;
      const r = Math.hypot(x, y, z);
      this.role("turn").value = (Math.atan2(y, x) * 180) / Math.PI;
      this.role("tilt").value = (Math.asin(z / r) * 180) / Math.PI;
      this.role("distance").value = r / this.scale(plot);
    }

    read() {
      const reader = this.spec.reader;
      if (!reader) return;
      const inputs = reader.names.map((_, index) => this.role(`read-${index}`));
      const at = inputs.map((input) => Number(input.value));
      const text = reader.kind === "line" ? reader.texts[at[0]] : reader.texts[this.textKey()][at[1]][at[0]];
      this.output.textContent = text;
      inputs.forEach((input, index) => {
        const values = index === 0 ? reader.x : reader.y;
        input.setAttribute("aria-valuetext", `${reader.names[index]} = ${Number(values[at[index]].toPrecision(4))}`);
      });
      this.plots.forEach((plot, index) => this.point(plot, this.panels[index], reader, at));
    }

    textKey() {
      return this.key().split("/").slice(1).join("/");
    }

    point(plot, panel, reader, at) {
      if (!plot.data) return;
      const x = reader.x[at[0]];
      if (reader.kind === "line") {
        const line = { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: CURSOR, layer: "below" };
        Plotly.relayout(plot, { shapes: [...(panel.layout.shapes ?? []), line] });
        return;
      }
      const y = reader.y[at[1]];
      const last = panel.data.length - 1;
      const place = { x: [[x]], y: [[y]] };
      if (panel.in_space) place.z = [[panel.heights[at[1]][at[0]] ?? panel.layout.scene.zaxis.range[0]]];
      Plotly.restyle(plot, place, [last]);
    }
  }

  const figures = JSON.parse(document.getElementById("figures").textContent).map((spec) => new Figure(spec));
  Promise.all(figures.map((figure) => figure.ready)).then(() => {
    document.documentElement.dataset.drawn = figures.length;
  });
})();
