// Lines over time. Vue shows names as text, never as markup.
const HEIGHT = 124;
const LEFT = 46;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 18;

function highest(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}

export default {
  props: { caption: String, unit: String, times: Array, lines: Array, ahead: Number },
  data: () => ({ width: 320, height: HEIGHT, at: null }),
  template: `
    <figure class="tiercel-chart">
      <figcaption>{{ caption }}</figcaption>
      <svg ref="drawing" :height="height" :viewBox="'0 0 ' + width + ' ' + height"
           @pointermove="point" @pointerleave="at = null">
        <g v-for="tick in ticks" :key="tick.y">
          <line class="grid" :x1="left" :x2="right" :y1="tick.y" :y2="tick.y" />
          <text text-anchor="end" :x="left - 6" :y="tick.y + 4">{{ tick.text }}</text>
        </g>
        <text v-for="moment in moments" :key="moment.x" :text-anchor="moment.anchor"
              :x="moment.x" :y="height - 3">{{ moment.text }}</text>
        <path v-for="line in lines" :key="line.name" :class="'line tone-' + line.tone"
              :d="path(line.values)" />
        <line v-if="at !== null" class="cursor" :x1="x(at)" :x2="x(at)" :y1="0" :y2="bottom" />
        <text v-if="!times.length" :x="width / 2" :y="height / 2"
              text-anchor="middle">nothing measured yet</text>
      </svg>
      <ul>
        <li v-for="line in lines" :key="line.name">
          <i :class="'tone-' + line.tone"></i>{{ line.name }}
          <b>{{ said(line.values[shown]) }}</b>
        </li>
        <li v-if="at !== null">{{ clock(times[at]) }}</li>
      </ul>
    </figure>`,
  computed: {
    left: () => LEFT,
    right() { return this.width - RIGHT; },
    bottom: () => HEIGHT - BOTTOM,
    top() {
      const known = this.lines.flatMap((line) => line.values).filter((value) => value !== null);
      return highest(Math.max(0, ...known));
    },
    ticks() {
      return [0, 0.5, 1].map((part) => ({ y: this.y(part * this.top), text: this.said(part * this.top) }));
    },
    moments() {
      const last = this.times.length - 1;
      if (last < 1) return [];
      return [
        { x: this.left, anchor: "start", text: this.clock(this.times[0]) },
        { x: this.right, anchor: "end", text: this.clock(this.times[last]) },
      ];
    },
    shown() { return this.at === null ? this.times.length - 1 : this.at; },
  },
  mounted() {
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.$refs.drawing);
    this.measure();
  },
  beforeUnmount() { this.observer.disconnect(); },
  watch: { times() { if (this.at >= this.times.length) this.at = null; } },
  methods: {
    measure() { this.width = Math.max(160, this.$refs.drawing.clientWidth); },
    span() { return Math.max(1, this.times[this.times.length - 1] - this.times[0]); },
    x(at) {
      return LEFT + ((this.times[at] - this.times[0]) / this.span()) * (this.right - LEFT);
    },
    y(value) { return TOP + (1 - value / this.top) * (this.bottom - TOP); },
    path(values) {
      let before = false;
      return values.map((value, at) => {
        const known = value !== null && value !== undefined;
        const command = before ? "L" : "M";
        const place = known ? `${this.x(at).toFixed(1)},${this.y(value).toFixed(1)}` : "";
        // A known value between unknown ones becomes a dot.
        const part = known ? command + place + (before ? "" : "h0") : "";
        before = known;
        return part;
      }).join("");
    },
    point(event) {
      if (this.times.length < 2) return;
      const box = this.$refs.drawing.getBoundingClientRect();
      const part = (event.clientX - box.left - LEFT) / (this.right - LEFT);
      const wanted = this.times[0] + Math.min(1, Math.max(0, part)) * this.span();
      const distance = (time) => Math.abs(time - wanted);
      this.at = this.times.reduce((best, time, at) => (distance(time) < distance(this.times[best]) ? at : best), 0);
    },
    said(value) {
      if (value === null || value === undefined) return "–";
      if (this.unit === "ms" && value >= 1000) return `${(value / 1000).toFixed(value < 9950 ? 1 : 0)} s`;
      const number = value >= 9.95 || Number.isInteger(value)
        ? Math.round(value).toLocaleString("en") : value.toFixed(1);
      return this.unit ? `${number} ${this.unit}` : number;
    },
    // In the monitor's time zone, as all other times of the page.
    clock(time) { return new Date(time + this.ahead).toLocaleTimeString("en-GB", { timeZone: "UTC" }); },
  },
};
