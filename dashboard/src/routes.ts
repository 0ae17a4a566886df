// The pages of the application and their paths. Pure; the build writes the list for the server too.

/** First segments of the paths of pages. The server returns the application for paths that begin with one of them, and 404 for others. */
export const pages = ['', 'sign-in', 'devices', 'rollouts', 'alarms', 'anchors', 'account'] as const;

/** A page, with the id of what it shows if it is about one thing. */
export interface Route {
  readonly page:
    | 'overview'
    | 'sign-in'
    | 'devices'
    | 'device'
    | 'rollouts'
    | 'rollout'
    | 'alarms'
    | 'anchors'
    | 'account'
    | 'unknown';
  readonly id: string;
  readonly query: URLSearchParams;
}

/** Returns the page of a path with a query, such as `/devices/0198…?tab=history`. */
export function routeOf(location: string): Route {
  const [path = '', search = ''] = location.split(/\?(.*)/s);
  const query = new URLSearchParams(search);
  const [, first = '', second = '', ...more] = path.split('/');
  const known = path.startsWith('/') ? pages.find((page) => page === first) : undefined;
  if (known === undefined || more.length > 0) return { page: 'unknown', id: '', query };
  const id = decoded(second);
  if (id === undefined) return { page: 'unknown', id: '', query };
  if (known === 'devices' && id !== '') return { page: 'device', id, query };
  if (known === 'rollouts' && id !== '') return { page: 'rollout', id, query };
  return id === '' ? { page: known === '' ? 'overview' : known, id, query } : { page: 'unknown', id: '', query };
}

/** Returns a path with the parameters that are not empty. */
export function pathWith(path: string, parameters: Readonly<Record<string, string>>): string {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== ''));
  return query.size === 0 ? path : `${path}?${query}`;
}

/** Returns where to go after a sign-in: a path of this application, else the overview. */
export function returnPath(wanted: string | null): string {
  if (wanted === null) return '/';
  const { page } = routeOf(wanted);
  return page === 'unknown' || page === 'sign-in' ? '/' : wanted;
}

function decoded(segment: string): string | undefined {
  try {
    return decodeURIComponent(segment);
  } catch {
    return undefined;
  }
}
