// The certificate of the TLS ports, read from files and again when they change, as when a certificate is renewed.
import { readFileSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import { Loop } from '../background/loop.ts';
import type { Logger } from '../observability/logger.ts';

/** Files that are mounted from a Secret are replaced by links, which file watchers miss. */
const lookMilliseconds = 10_000;

/** A certificate chain and its key, PEM. */
export interface Certificate {
  readonly cert: Buffer;
  readonly key: Buffer;
}

/** Follows the two files. */
export class TlsFiles {
  private readonly certFile: string;
  private readonly keyFile: string;
  private readonly logger: Logger;
  private readonly loop: Loop;
  private current: Certificate | undefined;
  private readonly followers: ((certificate: Certificate) => void)[] = [];

  constructor(certFile: string, keyFile: string, logger: Logger) {
    this.certFile = certFile;
    this.keyFile = keyFile;
    this.logger = logger;
    this.loop = new Loop(logger, 'reading of the TLS certificate', lookMilliseconds, async () => this.look());
  }

  /** Returns the certificate. Throws if the files cannot be read or do not match. */
  read(): Certificate {
    const certificate = { cert: readFileSync(this.certFile), key: readFileSync(this.keyFile) };
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
    if (current && current.cert.equals(certificate.cert) && current.key.equals(certificate.key)) return;
    this.current = certificate;
    for (const changed of this.followers) changed(certificate);
    this.logger.info('the TLS certificate has changed');
  }
}
