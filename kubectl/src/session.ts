// Context of every command: command line, cluster, data plane and terminal.
import { type CommandLine, numberOption, optionOf } from './arguments.ts';
import { Cluster } from './cluster.ts';
import { accountOf, DataPlane } from './data-plane.ts';
import { painter } from './format/paint.ts';
import type { View } from './format/rollout.ts';
import type { Terminal } from './terminal.ts';

/** A run of the plugin. */
export class Session {
  readonly line: CommandLine;
  readonly terminal: Terminal;
  readonly environment: NodeJS.ProcessEnv;
  /** Aborts when the user interrupts. */
  readonly signal: AbortSignal;
  private opened: Cluster | undefined;
  private connected: DataPlane | undefined;

  constructor(line: CommandLine, terminal: Terminal, environment: NodeJS.ProcessEnv, signal: AbortSignal) {
    this.line = line;
    this.terminal = terminal;
    this.environment = environment;
    this.signal = signal;
  }

  /** Returns the value of an option. */
  option(name: string): string | undefined {
    return optionOf(this.line, name);
  }

  private get timeoutMilliseconds(): number {
    return (numberOption(this.line, 'timeout', 1, 3600) ?? 30) * 1000;
  }

  /** The cluster of the kubeconfig, loaded lazily. */
  get cluster(): Cluster {
    return (this.opened ??= Cluster.open({
      kubeconfig: this.option('kubeconfig'),
      context: this.option('context'),
      namespace: this.option('namespace'),
      timeoutMilliseconds: this.timeoutMilliseconds,
    }));
  }

  /** The data plane of the cluster. */
  get dataPlane(): DataPlane {
    return (this.connected ??= new DataPlane(this.cluster, {
      server: this.option('server') ?? this.environment['KELLET_SERVER'],
      service: this.option('service'),
      account: accountOf(this.option('service-account'), this.cluster.namespace),
      timeoutMilliseconds: this.timeoutMilliseconds,
    }));
  }

  /** The current properties of the output. */
  view(): View {
    const { hasColor, hasUnicode } = this.terminal;
    return { paint: painter(hasColor), hasUnicode, now: Date.now() };
  }
}
