// Generates the table of scopes in docs/users.md from the contract (npm run generate): which roles hold each scope, and
// which calls need it.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Access_CustomerAccess as CustomerAccess } from '@kellet/proto/es/kellet/v1/options_pb';
import { scopesOfRole, tenantRoles } from '../../auth/roles/roles.ts';
import { allScopes } from '../../platform/scopes.ts';
import { publicServices } from '../services.ts';
import { accessOf } from '../transcoding/routes.ts';

const file = path.join(import.meta.dirname, '../../../../docs/users.md');
const [start, end] = ['<!-- generated: scopes -->', '<!-- end of what is generated -->'];

const methods = publicServices.flatMap((service) => service.methods);
const forDeviceGroups: readonly CustomerAccess[] = [CustomerAccess.OWN_DEVICE, CustomerAccess.FILTERED];

function row(scope: string): string {
  const names = methods
    .filter((method) => accessOf(method).scope === scope)
    .map((method) => {
      const { customerAccess, planned, everyScope } = accessOf(method);
      const name = forDeviceGroups.includes(customerAccess) ? `**${method.name}**` : method.name;
      return `${name}${everyScope ? ' (and every other)' : ''}${planned ? ' (planned)' : ''}`;
    });
  const roles = tenantRoles.filter((role) => scopesOfRole(role).has(scope)).toReversed();
  return `| \`${scope}\` | ${roles.join(', ')} | ${names.join(', ') || 'none'} |`;
}

const table = ['| scope | roles | calls |', '|---|---|---|', ...allScopes.map(row)].join('\n');
const [before = '', rest = ''] = readFileSync(file, 'utf8').split(start);
const after = rest.slice(rest.indexOf(end));
writeFileSync(file, `${before}${start}\n\n${table}\n\n${after}`);
