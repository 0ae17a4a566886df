// The servers of the broker and the credentials for them, as KELLET_NATS_URL gives them.

/** Servers of one broker, which all accept the same credentials. */
export interface BrokerServers {
  /** `host:port` of each. */
  readonly servers: readonly string[];
  readonly user: string | undefined;
  readonly password: string | undefined;
  readonly token: string | undefined;
  /** Whether a server that does not speak TLS is refused. */
  readonly requiresTls: boolean;
}

// A password may contain a comma, so only one before another URL separates.
const separator = /,\s*(?=[a-z]+:\/\/)/;

/**
 * Parses a URL of NATS, or those of the members of a cluster, separated by commas. Throws an Error that does not contain
 * the text, which is a secret.
 */
export function parseBrokerServers(text: string): BrokerServers {
  const urls = text.split(separator).map((part) => {
    const url = URL.parse(part.trim());
    if (!url || !/^(nats|tls):$/.test(url.protocol) || !/^[^,]+$/.test(url.hostname)) {
      throw new Error('must be a URL such as nats://host:4222, or several of them separated by commas');
    }
    return url;
  });
  const [first] = urls as [URL, ...URL[]];
  if (urls.some(({ username, password }) => username !== first.username || password !== first.password)) {
    throw new Error('must have the same user and password in each URL');
  }
  const name = unescaped(first.username);
  const password = unescaped(first.password);
  return {
    servers: urls.map(({ hostname, port }) => `${hostname}:${port || '4222'}`),
    user: password === '' ? undefined : name,
    password: password === '' ? undefined : password,
    token: password === '' && name !== '' ? name : undefined,
    requiresTls: urls.some(({ protocol }) => protocol === 'tls:'),
  };
}

function unescaped(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Error('must have %25 for each % in its user and password');
  }
}
