// The processor architectures of the image, and what Debian and npm call them.

export type Architecture = 'amd64' | 'arm64';

/** All architectures of a released image. */
export const architectures: readonly Architecture[] = ['amd64', 'arm64'];

/** The architecture of this machine. */
export const ownArchitecture: Architecture = process.arch === 'arm64' ? 'arm64' : 'amd64';

/** The name that npm and Node use. */
export const npmArchitecture = (architecture: Architecture): string => (architecture === 'amd64' ? 'x64' : 'arm64');
