// Decides what runs the pods of `make cluster`: kind, the kubelet of this machine, or kwok, which only pretends to.

/** What runs pods, the most faithful that is easy to remove first. */
export const podEngines = ['kind', 'kubelet', 'kwok'] as const;
export type PodEngine = (typeof podEngines)[number];

/** Facts of the machine. */
export interface MachineFacts {
  /** ENGINE: the one that must be used. */
  requested: string | undefined;
  /** A container engine whose server responds. */
  containerEngine: 'docker' | 'podman' | undefined;
  /** Whether the command `kind` exists. */
  hasKind: boolean;
  isLinux: boolean;
  isRoot: boolean;
  /** Whether containerd and what it needs are installed, or can be from Debian's packages. */
  hasContainerRuntime: boolean;
  /** Whether control groups are mounted, without which no container starts. */
  hasControlGroups: boolean;
}

/** Returns what an engine lacks on this machine, or undefined if it can run. */
export function lackOf(engine: PodEngine, facts: MachineFacts): string | undefined {
  switch (engine) {
    case 'kind':
      if (!facts.containerEngine) return 'no container engine responds (docker info, podman info)';
      return facts.hasKind ? undefined : `${facts.containerEngine} responds, but the command kind is not installed`;
    case 'kubelet':
      if (!facts.isLinux) return 'this machine does not run Linux';
      if (!facts.isRoot) return 'it needs root';
      if (!facts.hasControlGroups) return 'no control groups are mounted at /sys/fs/cgroup';
      return facts.hasContainerRuntime ? undefined : 'containerd is not installed, and there is no apt-get';
    case 'kwok':
      return undefined;
  }
}

/** Returns the engine that is requested, else the first that can run. Throws if the requested one cannot. */
export function chooseEngine(facts: MachineFacts): PodEngine {
  const { requested } = facts;
  if (!requested) return podEngines.find((engine) => lackOf(engine, facts) === undefined)!;
  const engine = podEngines.find((one) => one === requested);
  if (!engine) throw new Error(`ENGINE=${requested} is unknown: it must be one of ${podEngines.join(', ')}`);
  const lack = lackOf(engine, facts);
  if (lack) throw new Error(`ENGINE=${engine} cannot run here: ${lack}`);
  return engine;
}
