// Why an artifact could not be fetched.

/** Reports why an artifact could not be fetched. If it is `permanent`, another attempt has the same result. */
export class ArtifactError extends Error {
  readonly permanent: boolean;
  constructor(message: string, permanent: boolean, cause?: unknown) {
    super(message, { cause });
    this.name = 'ArtifactError';
    this.permanent = permanent;
  }
}

/** Said of every address that is blocked and of names that do not exist, so that errors reveal nothing about our network. */
export const nowhere = 'artifact_uri leads to no address from which artifacts may be fetched';
