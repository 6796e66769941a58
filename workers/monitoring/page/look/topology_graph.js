// The graph of a topology, from left to right. The layout comes from page/drawing.py.
// Vue shows names as text, never as markup.
export default {
  props: { width: Number, height: Number, nodes: Array, edges: Array },
  emits: ["pick"],
  template: `
    <div class="tiercel-scroll" tabindex="0" aria-label="graph of the topology">
      <svg class="tiercel-graph" :viewBox="'0 0 ' + width + ' ' + height"
           :style="{ minWidth: Math.min(width, width * 0.74) + 'px', maxWidth: width + 'px' }">
        <defs>
          <marker id="tiercel-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"
                  markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">
            <path d="M0,0 L8,4 L0,8 z" />
          </marker>
        </defs>
        <path v-for="(edge, at) in edges" :key="'edge' + at" :d="edge.path"
              :class="['edge', edge.flows ? 'flows' : '']" marker-end="url(#tiercel-arrow)" />
        <g v-for="node in nodes" :key="node.name" role="button" tabindex="0"
           :class="['node', node.kind, node.tone, node.failing ? 'failing' : '']"
           :transform="'translate(' + node.x + ',' + node.y + ')'"
           @click="$emit('pick', node.name)" @keydown.enter="$emit('pick', node.name)">
          <title>{{ node.title }}</title>
          <rect class="box" :width="node.width" :height="node.height" rx="7" />
          <rect class="bar" x="8" :y="node.height - 8" :width="node.width - 16" height="3" rx="1.5"
                v-if="node.share !== null" />
          <rect class="fill" x="8" :y="node.height - 8" :width="(node.width - 16) * node.share"
                height="3" rx="1.5" v-if="node.share !== null" />
          <text class="name" x="10" y="20">{{ node.label }}</text>
          <text v-for="(line, at) in node.lines" :key="at" x="10" :y="37 + 15 * at">{{ line }}</text>
          <text class="failed" v-if="node.failed" :x="node.width - 8" y="37"
                text-anchor="end">{{ node.failed }}</text>
        </g>
        <text v-for="(edge, at) in edges" :key="'label' + at" class="label" text-anchor="middle"
              :x="edge.x" :y="edge.y">{{ edge.label }}<title>{{ edge.title }}</title></text>
      </svg>
    </div>`,
};
