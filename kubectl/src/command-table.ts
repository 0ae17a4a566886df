// Every command as data: what it is for, what it takes, examples. Help, parsing and completion read it.

/** A command line option. `word` names its value in help; without it the option is a flag. */
export interface Option {
  readonly short?: string;
  readonly word?: string;
  readonly repeated?: boolean;
  readonly help: string;
  /** What completes its value. */
  readonly values?: readonly string[] | 'namespaces' | 'contexts';
}

/** Options that every command takes. */
export const commonOptions = {
  namespace: { short: 'n', word: 'NAME', help: "the tenant's namespace; default: the context's", values: 'namespaces' },
  context: { word: 'NAME', help: 'the context of the kubeconfig', values: 'contexts' },
  kubeconfig: { word: 'FILE', help: 'the kubeconfig; default: $KUBECONFIG, then ~/.kube/config' },
  server: { word: 'URL', help: 'base URL of the REST API, also $KELLET_SERVER; default: found through the cluster' },
  service: { word: 'NAMESPACE/NAME', help: 'the Service to forward to; default: kellet-system/kellet-apiserver' },
  'service-account': { word: '[NAMESPACE/]NAME', help: 'the account to act as; default: kellet-cli' },
  timeout: { word: 'SECONDS', help: 'how long one request may take; default: 30' },
  'no-color': { help: 'no colours, also $NO_COLOR' },
  help: { short: 'h', help: 'this text' },
} as const satisfies Record<string, Option>;

const output: Option = {
  short: 'o',
  word: 'FORMAT',
  help: 'json, yaml, wide or name',
  values: ['json', 'yaml', 'wide', 'name'],
};
const outputOfAnswers: Option = {
  short: 'o',
  word: 'FORMAT',
  help: 'json, yaml or name',
  values: ['json', 'yaml', 'name'],
};

/** States of a device in a rollout, as the API names them. */
export const deviceStates = [
  'scheduled',
  'sent',
  'downloading',
  'successful',
  'failure',
  'timed_out',
  'skipped',
  'rolled_back',
] as const;

/** What names can be completed for a command's arguments. */
export type ArgumentValues = 'resources' | 'rollouts' | 'packages' | 'shells' | 'commands' | 'files' | undefined;

/** A command of the plugin. */
export interface Command {
  readonly summary: string;
  /** The arguments as they stand in the usage line. */
  readonly usage: string;
  /** Least and greatest number of arguments. */
  readonly takes: readonly [number, number];
  readonly options: Readonly<Record<string, Option>>;
  readonly details?: string;
  readonly examples: readonly string[];
  /** What completes the first argument, and the ones after it. */
  readonly values: readonly [ArgumentValues, ArgumentValues];
}

const verb = (summary: string, details: string, example: string, options: Record<string, Option> = {}): Command => ({
  summary,
  usage: 'ROLLOUT…',
  takes: [1, Infinity],
  options: { output: outputOfAnswers, ...options },
  details,
  examples: [example],
  values: ['rollouts', 'rollouts'],
});

const device: Option = { word: 'ID', repeated: true, help: 'a device; may be repeated' };

/** The commands by name, in the order in which help shows them. */
export const commands = {
  status: {
    summary: 'Show how things stand, from the cluster alone',
    usage: '[all | KIND | KIND/NAME | ROLLOUT]',
    takes: [0, 1],
    options: {
      output,
      watch: { short: 'w', help: 'keep showing changes; a single rollout until it is completed' },
    },
    details:
      'Works while the data plane is away: it asks nothing but the Kubernetes API. With --watch on one rollout the plugin ' +
      'ends when the rollout does, with exit code 7 when it was rolled back or cancelled.',
    examples: [
      'kubectl kellet status',
      'kubectl kellet status weather-station-1.2.0 --watch',
      'kubectl kellet status otapackage/weather-station-1.2.0',
      'kubectl kellet status rollouts -o wide',
    ],
    values: ['resources', undefined],
  },
  plan: {
    summary: 'Say which devices a rollout would reach, step by step, and change nothing',
    usage: '(-f FILE | ROLLOUT)',
    takes: [0, 1],
    options: {
      output: outputOfAnswers,
      filename: { short: 'f', word: 'FILE', help: 'a manifest with an OtaRollout; - is standard input' },
    },
    details:
      'The package and the profile that the manifest names must be applied and Ready: the plan is made by the data plane ' +
      'over the devices as they are now. A rollout created from the same manifest schedules exactly these devices.',
    examples: ['kubectl kellet plan -f rollout.yaml', 'kubectl kellet plan weather-station-1.2.0 -o json'],
    values: ['rollouts', undefined],
  },
  pause: verb(
    'Stop scheduling devices',
    'Devices that have the update command already go on. spec is not touched, so Git does not undo it.',
    'kubectl kellet pause weather-station-1.2.0',
  ),
  resume: verb(
    'Go on with a paused rollout',
    'Failures so far are accepted: only later ones count towards the threshold. A rollout held by spec.paused is resumed in ' +
      'its manifest.',
    'kubectl kellet resume weather-station-1.2.0 --canary-percent 50',
    { 'canary-percent': { word: 'N', help: 'cover this share of the devices from now on, 1 to 100' } },
  ),
  rollback: verb(
    'Bring the devices that were reached back to the rollback package',
    'Devices that the update has not reached yet are left as they are.',
    'kubectl kellet rollback weather-station-1.2.0',
  ),
  approve: verb(
    'Let the step begin that waits for approval',
    'Only a rollout that is paused with the reason StepApproval has one.',
    'kubectl kellet approve weather-station-1.2.0',
  ),
  cancel: verb(
    'End a rollout for good',
    'What has not been delivered is withdrawn; devices that were updated stay updated. It cannot be resumed: to run again, ' +
      'make a rollout with a new name.',
    'kubectl kellet cancel weather-station-1.2.0',
  ),
  retry: verb(
    'Send the update again to devices that failed or timed out',
    'Without --device, to all of them.',
    'kubectl kellet retry weather-station-1.2.0 --device 01a1fe36-b8ce-77b2-8dcc-b7639ec2c922',
    { device },
  ),
  skip: verb(
    'Take devices out of a rollout',
    'They count neither as succeeded nor as failed, and the rollout can complete without them.',
    'kubectl kellet skip weather-station-1.2.0 --device 01a1fe36-b8ce-77b2-8dcc-b7639ec2c922',
    { device },
  ),
  devices: {
    summary: 'List the devices of a rollout and how far each is',
    usage: 'ROLLOUT',
    takes: [1, 1],
    options: {
      output,
      state: { word: 'STATE', help: `only these: ${deviceStates.join(', ')}`, values: deviceStates },
    },
    examples: [
      'kubectl kellet devices weather-station-1.2.0',
      'kubectl kellet devices weather-station-1.2.0 --state failure -o wide',
    ],
    values: ['rollouts', undefined],
  },
  proof: {
    summary: 'Fetch the proof that a telemetry point was anchored',
    usage: '(HASH | DEVICE/HASH | DEVICE)',
    takes: [1, 1],
    options: {
      output: outputOfAnswers,
      bundle: { short: 'b', word: 'FILE', help: 'write the bundle that proves it offline; - is standard output' },
      limit: { word: 'N', help: "with DEVICE: how many of the device's proofs to list, newest first; default: 20" },
    },
    details:
      'With DEVICE/HASH the proof must be that device’s. A bundle needs no Kellet to be checked: kellet-verify does it.',
    examples: [
      'kubectl kellet proof 01a1fe36-b8ce-77b2-8dcc-b7639ec2c922',
      'kubectl kellet proof 7f622db5ad1e83e1bc86656e4cf2d5144a45ba2276b9b32f112d883168d9e5f4 --bundle point.json',
    ],
    values: [undefined, undefined],
  },
  upload: {
    summary: 'Send the artifact of a package whose uri is upload://',
    usage: 'PACKAGE FILE',
    takes: [2, 2],
    options: {
      output: outputOfAnswers,
      'part-size': { word: 'MIB', help: 'how much one request carries; default: 4' },
    },
    details:
      'Compares size and SHA-256 before it sends anything. Run again after an interruption, it goes on where it was.',
    examples: ['kubectl kellet upload weather-station-1.2.0 build/firmware.bin'],
    values: ['packages', 'files'],
  },
  completion: {
    summary: 'Print a completion script',
    usage: '(bash | zsh | fish)',
    takes: [1, 1],
    options: {},
    details:
      'For `kubectl kellet …` kubectl itself asks kubectl_complete-kellet, which is installed beside the plugin; the script ' +
      'is for `kubectl-kellet …`.',
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

/** A command by its name; undefined when there is none. */
export const commandOf = (name: string): Command | undefined =>
  Object.hasOwn(commands, name) ? commands[name as CommandName] : undefined;

/** Options of a command, the common ones included. */
export const optionsOf = (command: Command): Readonly<Record<string, Option>> => ({
  ...command.options,
  ...commonOptions,
});
