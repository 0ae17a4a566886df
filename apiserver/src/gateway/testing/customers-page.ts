// Generates the tables in docs/customers.md from the contract (npm run generate): which calls users of customers may
// make, by role.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import {
  Access_Caller as AccessCaller,
  Access_CustomerAccess as CustomerAccess,
} from '@kellet/proto/es/kellet/v1/options_pb';
import { scopesOfRole } from '../../auth/roles/roles.ts';
import { publicServices } from '../services.ts';
import { accessOf, type Route, RouteTable } from '../transcoding/routes.ts';

const file = path.join(import.meta.dirname, '../../../../docs/customers.md');
const [start, end] = ['<!-- generated: tables -->', '<!-- end of what is generated -->'];

const sections: readonly [readonly CustomerAccess[], string, string][] = [
  [
    [CustomerAccess.OWN_DEVICE],
    'Calls about one of the customer’s devices',
    'The gateway checks the device that the request names. Any other is NOT_FOUND.',
  ],
  [
    [CustomerAccess.FILTERED, CustomerAccess.FILTERED_ENTITIES],
    'Calls limited to what is the customer’s',
    'Lists show nothing else, and any other id is NOT_FOUND.',
  ],
  [[CustomerAccess.UNLIMITED], 'Calls about the user’s own account, and public facts', 'They are not limited.'],
];

const rolesOf = ({ access: { scope } }: Route): string[] =>
  (['viewer', 'operator'] as const).filter((role) => scope === '' || scopesOfRole(role).has(scope));

const row = (route: Route): string => {
  const { method, access, verb } = route;
  const name = `${method.name}${access.planned ? ' (planned)' : ''}`;
  return `| ${name} | \`${verb} ${route.path}\` | ${access.scope && `\`${access.scope}\``} | ${rolesOf(route).join(', ')} |`;
};

/** Returns the tables as Markdown. */
function tables(): string {
  const routes = new RouteTable(publicServices).routes.filter(({ access }) =>
    access.callers.includes(AccessCaller.USER),
  );
  const lines: string[] = [];
  for (const [levels, title, about] of sections) {
    lines.push(`### ${title}`, '', about, '', '| call | route | scope | roles |', '|---|---|---|---|');
    lines.push(...routes.filter(({ access }) => levels.includes(access.customerAccess)).map(row), '');
  }
  lines.push('### Refused calls', '', 'PERMISSION_DENIED, whatever the role:', '');
  for (const service of publicServices) {
    const names = service.methods
      .filter((method) => accessOf(method).customerAccess === CustomerAccess.NONE)
      .map(({ name }) => name);
    if (names.length > 0) lines.push(`- ${service.name}: ${names.join(', ')}`);
  }
  return lines.join('\n');
}

const [before = '', rest = ''] = readFileSync(file, 'utf8').split(start);
const after = rest.slice(rest.indexOf(end));
writeFileSync(file, `${before}${start}\n\n${tables()}\n\n${after}`);
