// Resolves names chosen by tenants with separate DNS queries. dns.lookup would run them in the thread pool, where a few
// unresponsive names would delay every other lookup of the process, including the database's.
import type { LookupAddress, LookupAllOptions } from 'node:dns';
import dns from 'node:dns/promises';

/** Resolves a name to all its addresses, as dns.lookup returns them. */
export type Resolve = (
  name: string,
  options: LookupAllOptions,
  done: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void;

/** Timeout of a query, after which it is repeated once. */
const queryMilliseconds = 1500;
/** Timeout for resolving a name. */
const lookupMilliseconds = 5000;

/**
 * Returns a function that resolves names to their A and AAAA records, without a limit on concurrent queries. Unlike
 * dns.lookup it does not use /etc/hosts or search domains. `servers` replaces the system's name servers.
 */
export function dnsNames(servers?: readonly string[]): Resolve {
  return (name, { family }, done) => {
    const resolver = new dns.Resolver({ timeout: queryMilliseconds, tries: 2 });
    if (servers) resolver.setServers(servers);
    const timer = setTimeout(() => resolver.cancel(), lookupMilliseconds);
    const query = async (version: 4 | 6): Promise<LookupAddress[]> => {
      if (family === 10 - version || family === `IPv${10 - version}`) return [];
      const found = version === 4 ? await resolver.resolve4(name) : await resolver.resolve6(name);
      return found.map((address) => ({ address, family: version }));
    };
    void Promise.allSettled([query(4), query(6)]).then((outcomes) => {
      clearTimeout(timer);
      const addresses = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? outcome.value : []));
      const failure = outcomes.find((outcome) => outcome.status === 'rejected');
      done(addresses.length === 0 && failure ? (failure.reason as NodeJS.ErrnoException) : null, addresses);
    });
  };
}
