// The command kellet-apiserver config: checks the settings without connecting to anything.
import { createPrivateKey } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import { collectConfig, type Config, unknownSettings } from './config.ts';

export const configUsage = `usage: kellet-apiserver config check [--config FILE] [flags]

  Checks the settings that kellet-apiserver would use with the same flags, environment and file, and connects to nothing.
  Prints a line for each problem. Exit code: 0 valid, 1 problems, 2 bad usage.`;

/** Dependencies of the command. */
export interface ConfigCommandParts {
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly write: (line: string) => void;
}

/** Runs `kellet-apiserver config …` and returns the exit code: 0 if the settings are valid, 1 if not, 2 for bad usage. */
export function runConfigCommand(args: readonly string[], { environment, write }: ConfigCommandParts): number {
  const [verb, ...flags] = args;
  if (verb !== 'check' || flags[0]?.startsWith('--') === false) {
    write(configUsage);
    return 2;
  }
  const { config, problems } = collectConfig(environment, flags);
  const all = [
    ...problems,
    ...unknownSettings(environment),
    ...(problems.length === 0 ? materialProblems(config) : []),
  ];
  // One line each, whatever the error of a library contains.
  for (const problem of all) write(problem.replaceAll(/\s*\n\s*/g, ' '));
  return all.length === 0 ? 0 : 1;
}

/** Returns what is wrong with keys, certificates and URLs, which a process would notice at start. Never quotes a secret. */
function materialProblems(config: Config): string[] {
  const { jwtPrivateKey, walletKey, tlsCertFile, tlsKeyFile, databaseUrl, databaseDirectUrl } = config;
  const problems: string[] = [];
  const check = (problem: string, isRight: () => boolean): void => {
    try {
      if (isRight()) return;
    } catch {
      // The error might quote what it could not read.
    }
    problems.push(problem);
  };
  check('KELLET_DATABASE_URL must be a URL, such as postgres://USER:PASSWORD@HOST/DATABASE', () =>
    URL.canParse(databaseUrl),
  );
  check(
    'KELLET_DATABASE_DIRECT_URL must be a URL, such as postgres://USER:PASSWORD@HOST/DATABASE',
    () => databaseDirectUrl === '' || URL.canParse(databaseDirectUrl),
  );
  if (jwtPrivateKey !== '') {
    check(
      'KELLET_JWT_PRIVATE_KEY must be an Ed25519 key, PKCS#8 PEM',
      () => createPrivateKey(jwtPrivateKey).asymmetricKeyType === 'ed25519',
    );
  }
  check('KELLET_WALLET_KEY must have 64 hex digits', () => walletKey === '' || /^[0-9a-f]{64}$/i.test(walletKey));
  if (tlsCertFile !== '') {
    check(
      `KELLET_TLS_CERT_FILE and KELLET_TLS_KEY_FILE must be a readable certificate and its key: ${tlsCertFile}, ${tlsKeyFile}`,
      () => createSecureContext({ cert: readFileSync(tlsCertFile), key: readFileSync(tlsKeyFile) }) !== undefined,
    );
  }
  const { controlTlsCertFile, controlTlsKeyFile, controlTlsCaFile } = config;
  if (controlTlsCertFile !== '') {
    const [cert, key, ca] = [controlTlsCertFile, controlTlsKeyFile, controlTlsCaFile];
    check(
      `KELLET_CONTROL_TLS_CERT_FILE, _KEY_FILE and _CA_FILE must be a readable certificate, its key and its authority: ${cert}, ${key}, ${ca}`,
      () =>
        createSecureContext({ cert: readFileSync(cert), key: readFileSync(key), ca: readFileSync(ca) }) !== undefined,
    );
  }
  return problems;
}
