// A small chart of one series, newest at the right.

import { svg } from "./dom.js";

const WIDTH = 100;
const HEIGHT = 40;

export class Sparkline {
  /** `capacity` points fill the width; `top` fixes the scale, else the largest value does. */
  constructor(capacity, label, top = null) {
    this._capacity = capacity;
    this._top = top;
    this._values = [];
    this._line = svg("path", { class: "spark-line" });
    this._area = svg("path", { class: "spark-area" });
    this.element = svg("svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      svg("line", { class: "spark-base", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
      this._area, this._line);
  }

  push(value) {
    this._values.push(value);
    if (this._values.length > this._capacity) this._values.shift();
    const top = this._top ?? Math.max(...this._values, 1e-9);
    const offset = this._capacity - this._values.length;
    const points = this._values.map((v, i) => {
      const x = ((offset + i) * WIDTH) / (this._capacity - 1);
      return `${x.toFixed(2)},${(HEIGHT - (v / top) * (HEIGHT - 2)).toFixed(2)}`;
    });
    const line = `M${points.join("L")}`;
    const left = points[0].split(",")[0];
    this._line.setAttribute("d", line);
    this._area.setAttribute("d", `${line}L${WIDTH},${HEIGHT}L${left},${HEIGHT}Z`);
  }
}
