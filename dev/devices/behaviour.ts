// How a simulated device takes an update: the decision, apart from the network.

/** What a device does with the firmware it was told to install. */
export type Behaviour =
  /** Installs whatever it is sent. */
  | { kind: 'healthy' }
  /** Boots these versions and fails its self-test on them; installs all others. */
  | { kind: 'fails'; versions: readonly string[] }
  /** Takes the command and is never heard of again. */
  | { kind: 'silent' }
  /** Reports success, but under another version than the package's. */
  | { kind: 'wrong-version'; version: string };

/** What the device reports after it has verified an image; undefined when it reports nothing. */
export interface UpdateResult {
  status: 'success' | 'failure';
  /** What it runs now. */
  firmwareVersion: string;
  error: string;
}

/** Decides what becomes of a verified image of `version`. */
export function applyUpdate(behaviour: Behaviour, version: string): UpdateResult | undefined {
  switch (behaviour.kind) {
    case 'healthy':
      return { status: 'success', firmwareVersion: version, error: '' };
    case 'fails':
      return behaviour.versions.includes(version)
        ? { status: 'failure', firmwareVersion: version, error: `self-test failed on ${version}` }
        : { status: 'success', firmwareVersion: version, error: '' };
    case 'silent':
      return undefined;
    case 'wrong-version':
      return { status: 'success', firmwareVersion: behaviour.version, error: '' };
  }
}
