// TLS of the internal port, on which both sides present a certificate of the same authority (KELLET_CONTROL_TLS_…).
import { type ChannelCredentials, credentials, experimental } from '@grpc/grpc-js';

/** The PEM files of one side. They are read again when they change. */
export interface ControlTlsFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /** The authority that has signed the certificates of both sides. */
  readonly caFile: string;
}

/** How often files are read again, as those of the other TLS ports. */
const lookMilliseconds = 10_000;

/** Returns the files that the settings name, or undefined without TLS. */
export function controlTlsOf(config: {
  readonly controlTlsCertFile: string;
  readonly controlTlsKeyFile: string;
  readonly controlTlsCaFile: string;
}): ControlTlsFiles | undefined {
  const { controlTlsCertFile: certFile, controlTlsKeyFile: keyFile, controlTlsCaFile: caFile } = config;
  return certFile === '' ? undefined : { certFile, keyFile, caFile };
}

/** Returns the credentials of a client of the internal port. */
export function controlCredentials(files: ControlTlsFiles | undefined): ChannelCredentials {
  if (!files) return credentials.createInsecure();
  const provider = new experimental.FileWatcherCertificateProvider({
    ...{ certificateFile: files.certFile, privateKeyFile: files.keyFile, caCertificateFile: files.caFile },
    refreshIntervalMs: lookMilliseconds,
  });
  // The authority vouches for the other side, whose address may be that of a pod.
  const verification = { checkServerIdentity: () => undefined };
  return experimental.createCertificateProviderChannelCredentials(provider, provider, verification);
}
