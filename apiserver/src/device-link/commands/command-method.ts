// The method of a command: which ones only Kellet itself sends.
import { invalidArgument } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';

/** Tells a device which of its shared attributes have changed. */
export const attributesChanged = 'attributes_changed';

/** Methods that devices obey because Kellet alone sends them: an update, and a change of shared attributes. */
const reservedMethods: readonly string[] = ['ota_start', attributesChanged];

/** Reports whether only Kellet itself sends this method. */
export const isReservedMethod = (method: string): boolean => reservedMethods.includes(method);

/** Checks the method of a command that a user or rule sends, and returns it. Throws INVALID_ARGUMENT naming the field. */
export function methodField(field: string, method: string): string {
  textField(field, method, { minimum: 1, maximum: 128 });
  if (isReservedMethod(method)) throw invalidArgument(`${field} must not be ${method}, which only Kellet itself sends`);
  return method;
}
