// The handlers of `customers`.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { CustomerSchema, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { failedPrecondition } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { customerOf } from '../../platform/visibility.ts';
import {
  belongingsOf,
  changeCustomer,
  customerLimit,
  type CustomerRow,
  deleteCustomer,
  findCustomer,
  insertCustomer,
  listCustomers,
  lockCustomer,
} from './customers.ts';
import type { EntityParts } from './entity-parts.ts';

/** Customers of a page that waits for no turn: a contact takes up to 16 KiB. */
const smallPage = 50;

const contactField = (contact: string): string => textField('contact', contact, { maximum: 4096 });
const nameField = (name: string): string => textField('name', name, { minimum: 1, maximum: 256 });

/** The handlers. */
export function customerHandlers(parts: EntityParts): Implementation<typeof DeviceRegistryService> {
  const { database, paging, customerHasUsers } = parts;
  const transaction = retriedTransactions(database);

  return {
    createCustomer: async (request, { tenantId }) => {
      const customer = { customerId: newId(), name: nameField(request.name), contact: contactField(request.contact) };
      return toCustomer(
        await transaction(tenantId, async (tx) => {
          await checkRoom(tx, [tenantId], customerLimit);
          return insertCustomer(tx, tenantId, customer);
        }),
      );
    },

    getCustomer: async (request, { tenantId, caller }) => {
      const customerId = idField('customer', request.customerId);
      return toCustomer(
        await database.read(tenantId, (tx) => findCustomer(tx, tenantId, customerId, customerOf(caller))),
      );
    },

    listCustomers: async (request, { tenantId, caller }) => {
      const customer = customerOf(caller);
      const { items, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'customers', customer],
        smallPage,
        cursorOf: (row: CustomerRow) => row.customer_id,
        read: (tx, after, room) => listCustomers(tx, tenantId, customer, after, room),
        toItem: toCustomer,
      });
      return { customers: items, nextPageToken };
    },

    updateCustomer: async (request, { tenantId }) => {
      const customerId = idField('customer', request.customerId);
      const fields = updatedFields(request.updateMask, ['name', 'contact'] as const);
      const name = fields.has('name') ? nameField(request.name ?? '') : null;
      const contact = fields.has('contact') ? contactField(request.contact ?? '') : null;
      return toCustomer(
        await transaction(tenantId, (tx) =>
          fields.size === 0
            ? findCustomer(tx, tenantId, customerId, null)
            : changeCustomer(tx, tenantId, customerId, name, contact),
        ),
      );
    },

    deleteCustomer: async (request, { tenantId }) => {
      const customerId = idField('customer', request.customerId);
      await transaction(tenantId, async (tx) => {
        await lockCustomer(tx, tenantId, customerId);
        const [belongings, hasUsers] = await Promise.all([
          belongingsOf(tx, tenantId, customerId),
          customerHasUsers(tx, tenantId, customerId),
        ]);
        const kind = belongings ?? (hasUsers ? 'users' : undefined);
        if (kind !== undefined) throw failedPrecondition(`the customer still has ${kind}`);
        await deleteCustomer(tx, tenantId, customerId);
      });
      return {};
    },
  };
}

function toCustomer(row: CustomerRow): MessageInitShape<typeof CustomerSchema> {
  return {
    customerId: row.customer_id,
    name: row.name,
    contact: row.contact,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
