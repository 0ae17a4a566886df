// Runs kubectl as a command.
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const execute = promisify(execFile);

/** Runs kubectl in a namespace of a cluster. */
export class Kubectl {
  private readonly program: string;
  private readonly kubeconfig: string;
  readonly namespace: string;

  constructor(program: string, kubeconfig: string, namespace: string) {
    this.program = program;
    this.kubeconfig = kubeconfig;
    this.namespace = namespace;
  }

  /** Returns an instance for another namespace. */
  in(namespace: string): Kubectl {
    return new Kubectl(this.program, this.kubeconfig, namespace);
  }

  /** Returns the output. Throws an Error with the standard error output on failure. */
  async run(args: readonly string[], input?: string): Promise<string> {
    const running = execute(this.program, ['--namespace', this.namespace, ...args], {
      env: { ...process.env, KUBECONFIG: this.kubeconfig },
      maxBuffer: 64 << 20,
    });
    if (input !== undefined) running.child.stdin?.end(input);
    try {
      return (await running).stdout;
    } catch (error) {
      const { stderr } = error as { stderr?: string };
      throw new Error(`kubectl ${args.join(' ')}: ${stderr?.trim() || String(error)}`, { cause: error });
    }
  }

  /** `kubectl get … -o json`. */
  async json<Value>(args: readonly string[]): Promise<Value> {
    return JSON.parse(await this.run([...args, '--output', 'json'])) as Value;
  }

  /** `kubectl apply -f -` with these objects. */
  apply(...objects: readonly object[]): Promise<string> {
    return this.run(['apply', '--filename', '-'], objects.map((object) => JSON.stringify(object)).join('\n---\n'));
  }

  /** `kubectl wait` with a timeout in seconds. */
  async wait(resource: string | readonly string[], condition: string, seconds = 60): Promise<void> {
    const resources = typeof resource === 'string' ? [resource] : resource;
    await this.run(['wait', `--for=${condition}`, `--timeout=${seconds}s`, ...resources]);
  }
}
