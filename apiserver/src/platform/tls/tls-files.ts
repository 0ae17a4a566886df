// The certificate of the TLS ports, read from files and again when they change, as when a certificate is renewed.
import { readFileSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import { Loop } from '../background/loop.ts';
import type { Logger } from '../observability/logger.ts';

/** Files that are mounted from a Secret are replaced by links, which file watchers miss. */
const lookMilliseconds = 10_000;

/** A certificate chain and its key, PEM, and the authority whose certificates clients must have, if any. */
export interface Certificate {
  readonly cert: Buffer;
  readonly key: Buffer;
  readonly ca?: Buffer;
}

/** Follows the files. */
export class TlsFiles {
  private readonly certFile: string;
  private readonly keyFile: string;
  private readonly caFile: string | undefined;
  private readonly logger: Logger;
  private readonly loop: Loop;
  private current: Certificate | undefined;
  private readonly followers: ((certificate: Certificate) => void)[] = [];

  /** With `caFile` clients must have a certificate that one of its authorities has signed. */
  constructor(certFile: string, keyFile: string, logger: Logger, caFile?: string) {
    this.certFile = certFile;
    this.keyFile = keyFile;
    this.caFile = caFile;
    this.logger = logger;
    this.loop = new Loop(logger, 'reading of the TLS certificate', lookMilliseconds, async () => this.look());
  }

  /** Returns the certificate. Throws if the files cannot be read or do not match. */
  read(): Certificate {
    const certificate = {
      ...{ cert: readFileSync(this.certFile), key: readFileSync(this.keyFile) },
      ...(this.caFile === undefined ? {} : { ca: readFileSync(this.caFile) }),
    };
    createSecureContext(certificate);
    this.current ??= certificate;
    return certificate;
  }

  /** Calls back with each later certificate. */
  follow(changed: (certificate: Certificate) => void): void {
    this.followers.push(changed);
  }

  start(): void {
    this.loop.start();
  }

  stop(): void {
    void this.loop.stop();
  }

  /** One of the files may be newer than the other: then the loop tries again. */
  private look(): void {
    const certificate = this.read();
    const { current } = this;
    if (current && isSame(current, certificate)) return;
    this.current = certificate;
    for (const changed of this.followers) changed(certificate);
    this.logger.info('the TLS certificate has changed');
  }
}

const isSame = (one: Certificate, other: Certificate): boolean =>
  (['cert', 'key', 'ca'] as const).every((part) => one[part]?.toString() === other[part]?.toString());
