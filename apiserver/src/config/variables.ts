// Which environment variables named KELLET_… are settings of kellet-apiserver, and which belong to other programs.

/** Variables of the operator, the kubectl plugin, the examples, the local stack and the tests. */
const others = new Set(
  [
    // kellet-operator.
    ...['CONTROL_ADDRESS', 'LEADER_ELECTION', 'LEASE_NAMESPACE', 'TENANT_ROLE', 'IDENTITY', 'DRIFT_CHECK_SECONDS'],
    // Clients, examples and the kubectl plugin.
    ...['URL', 'SERVER', 'EMAIL', 'PASSWORD', 'KEY', 'API_KEY', 'PROVISION_KEY', 'GRPC', 'MQTT', 'RESPONSES', 'CACHE'],
    // The local stack and the tests.
    ...['ALLOW_LOCAL_FETCH', 'ARTIFACTS_PORT', 'CHROMIUM', 'SPLIT', 'SOAK', 'USE_CLUSTER', 'VERIFY_FUZZ'],
  ].map((name) => `KELLET_${name}`),
);

const otherPrefixes = /^KELLET_(TEST|DEV|DEVCHAIN|BENCH|FAULT|FUZZ|MODEL)_/;

/** Reports whether a variable is known to belong to another program. */
const isOfAnotherProgram = (name: string): boolean => others.has(name) || otherPrefixes.test(name);

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Reports whether a variable was set by Kubernetes for a Service, as with `enableServiceLinks`: for a Service
 * kellet-control, KELLET_CONTROL_PORT is tcp://ADDRESS:PORT.
 */
export function isServiceLink(environment: Environment, name: string): boolean {
  const [, service] = /^(.+?)_(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?|PORT|PORT_\d+_[A-Z]+(?:_[A-Z]+)?)$/.exec(name) ?? [];
  if (service === undefined) return false;
  const { [`${service}_SERVICE_HOST`]: host, [`${service}_SERVICE_PORT`]: port, [name]: value = '' } = environment;
  // A setting of this name takes precedence in the pod, and has no such value.
  return host !== undefined && port !== undefined && (!name.endsWith('_PORT') || isLink(name, service, value));
}

const isLink = (name: string, service: string, value: string): boolean =>
  name !== `${service}_PORT` || /^(tcp|udp|sctp):\/\//.test(value);

/** Returns the variables named KELLET_… that are neither in `known` nor of another program. */
export function unknownVariables(environment: Environment, known: ReadonlySet<string>): string[] {
  return Object.keys(environment)
    .filter((name) => name.startsWith('KELLET_') && environment[name] !== undefined && !known.has(name))
    .filter((name) => !isOfAnotherProgram(name) && !isServiceLink(environment, name))
    .sort();
}
