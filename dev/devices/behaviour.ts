// Decides how a simulated device reacts to an update.

/** Reaction of a device to new firmware. */
export type Behaviour =
  /** Installs all versions. */
  | { kind: 'healthy' }
  /** Fails its self-test on these versions, and installs all others. */
  | { kind: 'fails'; versions: readonly string[] }
  /** Receives the command and goes silent. */
  | { kind: 'silent' }
  /** Reports success with a different version than the package's. */
  | { kind: 'wrong-version'; version: string };

/** Report after verifying an image; undefined if there is none. */
export interface UpdateResult {
  status: 'success' | 'failure';
  /** What it runs now. */
  firmwareVersion: string;
  error: string;
}

/** Returns the result of installing a verified image of `version`. */
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
