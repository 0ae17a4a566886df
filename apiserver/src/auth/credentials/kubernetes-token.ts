// Recognises credentials that the cluster must check, by their claims alone, without a key or a request.

/** The audience that a token must be issued for, so that tokens for the Kubernetes API itself are never sent on. */
export const kubernetesAudience = 'kellet';

/** A permission in the form of Access.kubernetes_permission. */
export interface KubernetesPermission {
  readonly verb: string;
  readonly resource: string;
  /** Empty: the resource itself. */
  readonly subresource: string;
}

/** Parses `create otarollouts/pause`; returns undefined if the text is not a permission. */
export function parsePermission(text: string): KubernetesPermission | undefined {
  const parts = /^([a-z]+) ([a-z]+)(?:\/([a-z]+))?$/.exec(text);
  return parts ? { verb: parts[1]!, resource: parts[2]!, subresource: parts[3] ?? '' } : undefined;
}

/** Claims of a token, not verified. */
export interface ClaimedKubernetesToken {
  /** That of the service account; empty if the token names none. */
  readonly namespace: string;
  /** Seconds since 1970. */
  readonly expiresAt: number;
}

/**
 * Reads a service account's token that was issued for {@link kubernetesAudience}; returns undefined for every other
 * credential. Only tokens recognised here are sent to the cluster.
 */
export function readKubernetesToken(credential: string): ClaimedKubernetesToken | undefined {
  // `{"` in base64url, the start of every JWT.
  if (!credential.startsWith('eyJ')) return undefined;
  const parts = credential.split('.');
  if (parts.length !== 3) return undefined;
  let claims: unknown;
  try {
    claims = JSON.parse(Buffer.from(parts[1]!, 'base64url').toString('utf8'));
  } catch {
    return undefined;
  }
  if (typeof claims !== 'object' || claims === null) return undefined;
  const { aud, exp, 'kubernetes.io': kubernetes } = claims as Record<string, unknown>;
  const audiences: readonly unknown[] = Array.isArray(aud) ? aud : [aud];
  if (typeof kubernetes !== 'object' || kubernetes === null || !audiences.includes(kubernetesAudience))
    return undefined;
  if (typeof exp !== 'number') return undefined;
  const namespace: unknown = (kubernetes as { namespace?: unknown } | null)?.namespace;
  return { namespace: typeof namespace === 'string' ? namespace : '', expiresAt: Math.floor(exp) };
}

/** Returns the namespace of a service account from its user name, or '' if it is not a service account's. */
export function namespaceOfServiceAccount(username: string): string {
  return /^system:serviceaccount:([a-z0-9-]+):[a-z0-9.-]+$/.exec(username)?.[1] ?? '';
}
