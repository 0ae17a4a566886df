// Credentials of private sources, as the operator reads them from a Secret. They are sent only to addresses below their prefix.
import type { S3Settings } from '../../../platform/object-store/s3-client.ts';

/** Credentials for the addresses that begin with `prefix`. */
export interface SourceCredentials {
  readonly prefix: string;
  /** The header Authorization of an https source. */
  readonly authorization?: string;
  /** Of an s3 source. An empty endpoint is that of the settings, an absent region too. */
  readonly s3?: Omit<S3Settings, 'region'> & { readonly region?: string };
}

/** The values of a Secret, by data key. */
export type SecretValues = Readonly<Record<string, string>>;

const keysOf = {
  basic: ['username', 'password'],
  bearer: ['token'],
  s3: ['accessKey', 'secretKey'],
} as const;
const optionalKeys = ['sessionToken', 'endpoint', 'region'] as const;

/**
 * Reads the credentials of a Secret: `prefix`, and either `username` and `password`, or `token`, or `accessKey` and `secretKey`
 * with `sessionToken`, `endpoint` and `region` if needed. Returns what is wrong with it otherwise; a message contains no value.
 */
export function readCredentials(values: SecretValues): SourceCredentials | string {
  const kinds = Object.entries(keysOf).filter(([, keys]) => keys.some((key) => values[key] !== undefined));
  const [kind, keys] = kinds[0] ?? [];
  if (!keys || kinds.length > 1) return 'must have username and password, token, or accessKey and secretKey';
  const missing = ['prefix', ...keys].find((key) => !values[key]);
  if (missing !== undefined) return `must have the data key ${missing}`;
  // They become headers.
  const wrong = [...keys, ...optionalKeys].find((key) => /[\r\n\0]/.test(values[key] ?? ''));
  if (wrong !== undefined) return `must have a value of one line for ${wrong}`;
  const prefix = normalise(values['prefix']!);
  if (prefix === undefined || !prefix.endsWith('/')) return 'must have a prefix that is a URL and ends with /';
  if (prefix.startsWith('s3://') !== (kind === 's3')) return 'must have accessKey and secretKey for an s3 prefix alone';
  if (kind === 's3') {
    const { accessKey = '', secretKey = '', sessionToken, endpoint = '', region } = values;
    if (endpoint !== '' && !/^https?:$/.test(URL.parse(endpoint)?.protocol ?? '')) return 'must have a URL as endpoint';
    return {
      prefix,
      s3: { accessKey, secretKey, endpoint, ...(sessionToken && { sessionToken }), ...(region && { region }) },
    };
  }
  const { username, password, token } = values;
  return {
    prefix,
    authorization:
      kind === 'basic'
        ? `Basic ${Buffer.from(`${username}:${password}`, 'utf8').toString('base64')}`
        : `Bearer ${token}`,
  };
}

/** Reports whether the credentials may be sent to this address. */
export const coversAddress = ({ prefix }: SourceCredentials, uri: string): boolean =>
  normalise(uri)?.startsWith(prefix) ?? false;

/** Returns an address in one spelling, without dots and escapes that lead out of a prefix. */
function normalise(uri: string): string | undefined {
  if (uri.startsWith('s3://')) return uri;
  const url = URL.parse(uri);
  if (!url || !/^https?:$/.test(url.protocol) || url.username !== '' || url.password !== '') return undefined;
  // A server may decode them before it resolves dots.
  return /%(?:2e|2f|5c)/i.test(url.pathname) ? undefined : url.href;
}
