// For tests: runs a gateway in a separate process, on the database in KELLET_TEST_SHARED_DATABASE_URL. Sends its REST
// address to the parent process and exits with it.
import { ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { Database } from '../../platform/database/database.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { startTestGateway } from './test-gateway.ts';

const url = process.env['KELLET_TEST_SHARED_DATABASE_URL']!;
const redisUrl = process.env['KELLET_TEST_REDIS_URL'] ?? '';
const gateway = await startTestGateway(
  (registry) => registry.register(DeviceRegistryService, { getDevice: async ({ deviceId }) => ({ deviceId }) }),
  {
    testDatabase: { database: new Database(url, createLogger('silent')), url },
    environment: { KELLET_REDIS_URL: redisUrl },
  },
);
gateway.tokens.set('limited', {
  valid: true,
  tenantId: 'limited',
  userId: 'u',
  kind: Kind.user,
  scopes: ['devices:read'],
  rateLimitPerMinute: Number(process.env['KELLET_TEST_RATE_LIMIT']),
});
process.on('disconnect', () => process.exit(0));
process.send!(gateway.rest);
