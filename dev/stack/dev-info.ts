// .kellet/dev.json: addresses and credentials of a running stack.
import { renameSync, rmSync, writeFileSync } from 'node:fs';

/** Content of dev.json. Base URLs have no trailing slash. */
export interface DevInfo {
  /** Base URL of the REST API. */
  rest: string;
  /** host:port of the public gRPC API. */
  grpc: string;
  /** Base URL of the data plane's /metrics, /healthz and /readyz. */
  metrics: string;
  /** Origin of the dashboard, the only one with cross-origin access. */
  dashboard: string;
  kubeconfig: string;
  /** Namespace of the first tenant's resources. */
  namespace: string;
  tenant: string;
  email: string;
  password: string;
  /** A second tenant, for tests of isolation. */
  other: { tenant: string; email: string; password: string };
  /** The administrator of the installation. */
  platform: { email: string; password: string };
  /** Key of X-ARC-Signature. */
  callbackSecret: string;
  /** Base URL of the local chain; absent when another processor is used. */
  devchain?: string | undefined;
  databaseUrl: string;
  natsUrl: string;
  /** mqtt://host:port. */
  mqtt: string;
  /** Base URL under which the files of the folder `artifacts` of the state folder are served. */
  artifacts: string;
  /** Running processes, except those that the stack did not start. */
  pids: Record<string, number>;
}

/** Converts process names to those of dev.json: `kube-apiserver` → `kubeApiserver`. */
export function pidsByName(pids: Readonly<Record<string, number>>): Record<string, number> {
  const camel = (name: string) => name.replace(/-(.)/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(pids).map(([name, pid]) => [camel(name), pid]));
}

/** Writes the file atomically, readable only by its owner. */
export function writeDevInfo(path: string, info: DevInfo): void {
  writeFileSync(`${path}.new`, `${JSON.stringify(info, undefined, 2)}\n`, { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

/** Removes the file, because its addresses are no longer valid. */
export function removeDevInfo(path: string): void {
  rmSync(path, { force: true });
}
