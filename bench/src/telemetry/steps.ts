// Attributes the samples of a CPU profile (V8's .cpuprofile) to the steps of ingest. Pure.

/** The parts of a .cpuprofile that are used. Times are microseconds of the monotonic clock. */
export interface CpuProfile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: { readonly functionName: string; readonly url: string };
    readonly children?: readonly number[];
  }[];
  readonly startTime: number;
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}

/** A function in `apiserver/src/` or elsewhere. */
interface Frame {
  readonly functionName: string;
  /** Path below apiserver/src, or the URL. */
  readonly path: string;
}

interface Step {
  readonly name: string;
  readonly takes: (frame: Frame) => boolean;
}

const inFiles =
  (pattern: RegExp) =>
  ({ path }: Frame): boolean =>
    pattern.test(path);

/** The steps. Time belongs to the innermost function that a step takes; of two steps that take it, to the first. */
const steps: readonly Step[] = [
  { name: 'batch trees', takes: ({ functionName }) => /^(merkleRoot|hashPair|batchRoot)$/.test(functionName) },
  { name: 'leaf hashes', takes: inFiles(/^telemetry\/points\/leaf-hashes/) },
  { name: 'reading bodies', takes: inFiles(/^(telemetry\/kernel\/(?!row-point)|gateway\/transcoding\/)/) },
  { name: 'devices', takes: inFiles(/^device-registry\/devices\/directory/) },
  { name: 'validation and rows', takes: inFiles(/^telemetry\/(kernel\/row-point|ingest\/|points\/)/) },
  { name: 'places in batches', takes: inFiles(/^telemetry\/write\/batches/) },
  { name: 'encoding of flushes', takes: inFiles(/^telemetry\/write\/(flush|wire-buffer|rule-feed)\.ts/) },
  { name: 'sending to PostgreSQL', takes: inFiles(/^(telemetry\/write\/w|platform\/database\/)|\/pg(-protocol)?\//) },
  { name: 'group commit', takes: inFiles(/^telemetry\/write\//) },
  {
    name: 'after the commit',
    takes: (frame) =>
      frame.functionName === 'committed' || inFiles(/^(telemetry\/(read|live)\/|device-registry\/)/)(frame),
  },
  { name: 'access log, metrics and traces', takes: inFiles(/^(gateway|platform)\/observability\//) },
  { name: 'HTTP and admission', takes: inFiles(/^(gateway\/|node:(_http|net|internal\/stream))/) },
];

/** Work that no function does. */
const ofTheEngine: Readonly<Record<string, string>> = {
  '(garbage collector)': 'garbage collection',
  '(program)': 'other',
};

/** Returns the microseconds of each step between two times, the most expensive step first. */
export function microsecondsByStep(profile: CpuProfile, from: number, to: number): Map<string, number> {
  const stepOf = stepsOfNodes(profile);
  const sums = new Map<string, number>();
  let time = profile.startTime;
  for (const [index, id] of profile.samples.entries()) {
    const delta = profile.timeDeltas[index]!;
    time += delta;
    const step = stepOf.get(id);
    if (step !== undefined && time >= from && time <= to) sums.set(step, (sums.get(step) ?? 0) + delta);
  }
  return new Map([...sums].sort(([, a], [, b]) => b - a));
}

/** Returns the step of each node; a node without one is idle. */
function stepsOfNodes({ nodes }: CpuProfile): Map<number, string> {
  const steps = new Map<number, string>();
  const byId = new Map(nodes.map((node) => [node.id, node]));
  // Parents come before their children, whatever the order of the list.
  const visit = (id: number, outer: string): void => {
    const { callFrame, children = [] } = byId.get(id)!;
    if (callFrame.functionName === '(idle)') return;
    const step = ofTheEngine[callFrame.functionName] ?? stepOfFrame(callFrame) ?? outer;
    steps.set(id, step);
    for (const child of children) visit(child, step);
  };
  if (nodes[0]) visit(nodes[0].id, 'other');
  return steps;
}

function stepOfFrame({ functionName, url }: { functionName: string; url: string }): string | undefined {
  const path = /\/apiserver\/src\/(?!.*node_modules)(.*)$/.exec(url)?.[1] ?? url;
  return steps.find(({ takes }) => takes({ functionName, path }))?.name;
}
