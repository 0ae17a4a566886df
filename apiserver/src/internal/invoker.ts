// Routes a call to its handler, in this process or in the one that runs its target.
import type { DescMethod, DescService, MessageShape } from '@bufbuild/protobuf';
import { servicesOf, type Target } from '../config/targets.ts';
import type { CallContext, Invoker, ServiceRegistry, StreamHandler } from '../platform/rpc.ts';
import type { ControlTlsFiles } from './control-tls.ts';
import { RemoteInvoker } from './remote-invoker.ts';

const checkMilliseconds = 900;

/** Invokes services of this process and of others. With only local services, the registry alone does the same. */
export class TargetInvoker implements Invoker {
  private readonly local: ServiceRegistry;
  private readonly remotes = new Map<Target, RemoteInvoker>();
  private readonly byService = new Map<DescService, RemoteInvoker>();

  constructor(local: ServiceRegistry, addresses: ReadonlyMap<Target, string>, secret: string, tls?: ControlTlsFiles) {
    this.local = local;
    for (const [target, address] of addresses) {
      const remote = new RemoteInvoker(target, address, secret, tls);
      this.remotes.set(target, remote);
      for (const service of servicesOf[target]) this.byService.set(service, remote);
    }
  }

  unary<M extends DescMethod>(
    method: M,
    request: MessageShape<M['input']>,
    context: CallContext,
  ): Promise<MessageShape<M['output']>> {
    return (this.byService.get(method.parent) ?? this.local).unary(method, request, context);
  }

  stream(method: DescMethod): StreamHandler {
    return (this.byService.get(method.parent) ?? this.local).stream(method);
  }

  /** Targets that run in other processes. */
  get remoteTargets(): readonly Target[] {
    return [...this.remotes.keys()];
  }

  /** Rejects unless the process of a remote target reports that it serves the target's services. */
  async checkTarget(target: Target): Promise<void> {
    for (const { typeName } of servicesOf[target]) await this.remotes.get(target)!.check(typeName, checkMilliseconds);
  }

  /** Reports whether a service can be called, by its full name. Local services always can. */
  async isServing(typeName: string): Promise<boolean> {
    const remote = [...this.byService].find(([service]) => service.typeName === typeName)?.[1];
    if (!remote) return true;
    return remote.check(typeName, checkMilliseconds).then(
      () => true,
      () => false,
    );
  }

  /** Closes the connections. */
  close(): void {
    for (const remote of this.remotes.values()) remote.close();
  }
}
