// Which credentials are meant for the cluster to judge: decided by a look at their claims, without any key and without asking.

/** The audience that a token must be issued for: a token for the Kubernetes API itself is nobody else's to see. */
export const kubernetesAudience = 'kellet';

/** A permission as Access.kubernetes_permission writes it. */
export interface KubernetesPermission {
  readonly verb: string;
  readonly resource: string;
  /** Empty: the resource itself. */
  readonly subresource: string;
}

/** Reads `create otarollouts/pause`; undefined when it is no permission. */
export function parsePermission(text: string): KubernetesPermission | undefined {
  const parts = /^([a-z]+) ([a-z]+)(?:\/([a-z]+))?$/.exec(text);
  return parts ? { verb: parts[1]!, resource: parts[2]!, subresource: parts[3] ?? '' } : undefined;
}

/** What a token says of itself, unproven. */
export interface ClaimedKubernetesToken {
  /** Seconds since 1970. */
  readonly expiresAt: number;
}

/**
 * Reads a service account's token that was issued for {@link kubernetesAudience}; undefined for every other credential. Only
 * what this reads is ever sent to the cluster, so that other credentials stay ours and no random text costs it a review.
 */
export function readKubernetesToken(credential: string): ClaimedKubernetesToken | undefined {
  // `{"` in base64url: what every JWT starts with.
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
  return typeof exp === 'number' ? { expiresAt: Math.floor(exp) } : undefined;
}

/** The namespace of a service account by its user name; empty when it is no service account's. */
export function namespaceOfServiceAccount(username: string): string {
  return /^system:serviceaccount:([a-z0-9-]+):[a-z0-9.-]+$/.exec(username)?.[1] ?? '';
}
