// Definitions of all commands, used by help, parsing and completion.

/** A command line option. `word` is the placeholder of its value in help; without it the option is a flag. */
export interface Option {
  readonly short?: string;
  readonly word?: string;
  readonly repeated?: boolean;
  readonly help: string;
  /** Completions of its value. Other values are refused unless it may be a file. */
  readonly values?: readonly string[] | 'namespaces' | 'contexts';
  readonly mayBeFile?: true;
}

/** Options of every command. */
export const commonOptions = {
  namespace: {
    short: 'n',
    word: 'NAME',
    help: "the tenant's namespace (default: the namespace of the context)",
    values: 'namespaces',
  },
  context: { word: 'NAME', help: 'context of the kubeconfig', values: 'contexts' },
  kubeconfig: { word: 'FILE', help: 'kubeconfig file (default: $KUBECONFIG, then ~/.kube/config)' },
  server: { word: 'URL', help: 'REST API, also $KELLET_SERVER (default: found through the cluster)' },
  service: { word: 'NAMESPACE/NAME', help: 'Service to port-forward to (default: kellet-system/kellet-apiserver)' },
  'service-account': { word: '[NAMESPACE/]NAME', help: 'service account to act as (default: kellet-cli)' },
  timeout: { word: 'SECONDS', help: 'timeout of each request (default: 30)' },
  'no-color': { help: 'disable colours, also $NO_COLOR' },
  help: { short: 'h', help: 'show help' },
} as const satisfies Record<string, Option>;

const output: Option = {
  short: 'o',
  word: 'FORMAT',
  help: 'output format: json, yaml, wide or name',
  values: ['json', 'yaml', 'wide', 'name'],
};
const outputOption: Option = {
  short: 'o',
  word: 'FORMAT',
  help: 'output format: json, yaml or name',
  values: ['json', 'yaml', 'name'],
};

/** States of a device in a rollout, as in the API. */
const deviceStates = [
  'scheduled',
  'sent',
  'downloading',
  'successful',
  'failure',
  'timed_out',
  'skipped',
  'rolled_back',
] as const;

/** Kinds of names that complete a command's arguments. */
export type ArgumentValues = 'resources' | 'rollouts' | 'packages' | 'shells' | 'commands' | 'files' | undefined;

/** A command of the plugin. */
export interface Command {
  readonly summary: string;
  /** Arguments in the usage line. */
  readonly usage: string;
  /** Minimum and maximum number of arguments. */
  readonly takes: readonly [number, number];
  readonly options: Readonly<Record<string, Option>>;
  readonly details?: string;
  readonly examples: readonly string[];
  /** Completions of the first argument, and of further ones. */
  readonly values: readonly [ArgumentValues, ArgumentValues];
}

const verb = (summary: string, details: string, example: string, options: Record<string, Option> = {}): Command => ({
  summary,
  usage: 'ROLLOUT…',
  takes: [1, Infinity],
  options: { output: outputOption, ...options },
  details,
  examples: [example],
  values: ['rollouts', 'rollouts'],
});

const device: Option = { word: 'ID', repeated: true, help: 'device id; may be repeated' };

/** Commands by name, in the order of help. */
export const commands = {
  status: {
    summary: 'Show the state of rollouts and other resources',
    usage: '[all | KIND | KIND/NAME | ROLLOUT]',
    takes: [0, 1],
    options: {
      output,
      watch: { short: 'w', help: 'watch for changes; for a single rollout, until it completes' },
    },
    details:
      'Uses only the Kubernetes API, so it works while the data plane is unavailable. With --watch and a single rollout, the ' +
      'command exits when the rollout completes, with exit code 7 if it was rolled back or cancelled.',
    examples: [
      'kubectl kellet status',
      'kubectl kellet status weather-station-1.2.0 --watch',
      'kubectl kellet status otapackage/weather-station-1.2.0',
      'kubectl kellet status rollouts -o wide',
    ],
    values: ['resources', undefined],
  },
  plan: {
    summary: 'Show which devices a rollout would reach, step by step, without changing anything',
    usage: '(-f FILE | ROLLOUT)',
    takes: [0, 1],
    options: {
      output: outputOption,
      filename: { short: 'f', word: 'FILE', help: 'manifest with an OtaRollout; - for standard input' },
    },
    details:
      'The package and profile that the manifest refers to must be applied and Ready. The data plane makes the plan for the ' +
      'current devices; a rollout created from the same manifest schedules exactly these devices.',
    examples: ['kubectl kellet plan -f rollout.yaml', 'kubectl kellet plan weather-station-1.2.0 -o json'],
    values: ['rollouts', undefined],
  },
  pause: verb(
    'Pause a rollout',
    'No further devices are scheduled. Devices that already have the update command continue. spec is not changed, so Git ' +
      'does not undo the pause.',
    'kubectl kellet pause weather-station-1.2.0',
  ),
  resume: verb(
    'Resume a paused rollout',
    'Accepts the failures so far: only later ones count towards the threshold. A rollout held by spec.paused must be resumed ' +
      'in its manifest.',
    'kubectl kellet resume weather-station-1.2.0 --canary-percent 50',
    { 'canary-percent': { word: 'N', help: 'raise the rollout to this percentage of devices, 1 to 100' } },
  ),
  rollback: verb(
    'Roll back to the rollback package',
    'Only devices that the update has reached are rolled back.',
    'kubectl kellet rollback weather-station-1.2.0',
  ),
  approve: verb(
    'Approve the next step of a rollout',
    'The rollout must be paused with the reason StepApproval.',
    'kubectl kellet approve weather-station-1.2.0',
  ),
  cancel: verb(
    'Cancel a rollout permanently',
    'Undelivered update commands are withdrawn; updated devices stay updated. A cancelled rollout cannot be resumed: create ' +
      'one with a new name instead.',
    'kubectl kellet cancel weather-station-1.2.0',
  ),
  retry: verb(
    'Retry devices that failed or timed out',
    'Without --device, retries all of them.',
    'kubectl kellet retry weather-station-1.2.0 --device 01a1fe36-b8ce-77b2-8dcc-b7639ec2c922',
    { device },
  ),
  skip: verb(
    'Remove devices from a rollout',
    'They count as neither succeeded nor failed, and the rollout can complete without them.',
    'kubectl kellet skip weather-station-1.2.0 --device 01a1fe36-b8ce-77b2-8dcc-b7639ec2c922',
    { device },
  ),
  devices: {
    summary: 'List the devices of a rollout and their progress',
    usage: 'ROLLOUT',
    takes: [1, 1],
    options: {
      output,
      state: { word: 'STATE', help: `filter by state: ${deviceStates.join(', ')}`, values: deviceStates },
    },
    examples: [
      'kubectl kellet devices weather-station-1.2.0',
      'kubectl kellet devices weather-station-1.2.0 --state failure -o wide',
    ],
    values: ['rollouts', undefined],
  },
  proof: {
    summary: 'Fetch the proof of an anchored telemetry point, or of a whole rollout',
    usage: '(HASH | DEVICE/HASH | DEVICE | rollout NAME)',
    takes: [1, 2],
    options: {
      output: {
        ...outputOption,
        help: 'output format: json, yaml or name; with rollout NAME also the file to write',
        mayBeFile: true,
      },
      bundle: { short: 'b', word: 'FILE', help: 'write the bundle for offline verification; - for standard output' },
      limit: { word: 'N', help: "with DEVICE: number of the device's proofs to list, newest first (default: 20)" },
    },
    details:
      'With DEVICE/HASH the proof must belong to that device. The proof of a rollout contains every result that its devices ' +
      'reported, and is read and written page by page. Both can be verified without Kellet, with kellet-verify.',
    examples: [
      'kubectl kellet proof rollout weather-station-1.2.0 -o rollout.ndjson',
      'kubectl kellet proof 01a1fe36-b8ce-77b2-8dcc-b7639ec2c922',
      'kubectl kellet proof 7f622db5ad1e83e1bc86656e4cf2d5144a45ba2276b9b32f112d883168d9e5f4 --bundle point.json',
    ],
    values: [undefined, undefined],
  },
  upload: {
    summary: 'Upload the artifact of an upload:// package',
    usage: 'PACKAGE FILE',
    takes: [2, 2],
    options: {
      output: outputOption,
      'part-size': { word: 'MIB', help: 'size of each request (default: 4)' },
    },
    details:
      'Verifies size and SHA-256 before sending anything. After an interruption, run the command again to resume.',
    examples: ['kubectl kellet upload weather-station-1.2.0 build/firmware.bin'],
    values: ['packages', 'files'],
  },
  completion: {
    summary: 'Print a completion script',
    usage: '(bash | zsh | fish)',
    takes: [1, 1],
    options: {},
    details:
      'The script completes `kubectl-kellet …`. For `kubectl kellet …`, kubectl itself calls kubectl_complete-kellet, which is ' +
      'installed with the plugin.',
    examples: ['source <(kubectl kellet completion bash)', 'kubectl kellet completion fish | source'],
    values: ['shells', undefined],
  },
  version: {
    summary: 'Print the versions of the plugin and of Kubernetes',
    usage: '',
    takes: [0, 0],
    options: { output: { short: 'o', word: 'FORMAT', help: 'json or yaml', values: ['json', 'yaml'] } },
    examples: ['kubectl kellet version'],
    values: [undefined, undefined],
  },
  help: {
    summary: 'Explain a command',
    usage: '[COMMAND]',
    takes: [0, 1],
    options: {},
    examples: ['kubectl kellet help resume'],
    values: ['commands', undefined],
  },
} as const satisfies Record<string, Command>;

/** The name of a command. */
export type CommandName = keyof typeof commands;

/** Returns a command by name, or undefined. */
export const commandOf = (name: string): Command | undefined =>
  Object.hasOwn(commands, name) ? commands[name as CommandName] : undefined;

/** Returns the options of a command, including the common ones. */
export const optionsOf = (command: Command): Readonly<Record<string, Option>> => ({
  ...command.options,
  ...commonOptions,
});
