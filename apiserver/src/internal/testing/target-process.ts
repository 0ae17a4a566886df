// For tests: a process with an internal port. Sends its port to the parent process, then the id of each device that a call
// asks for or deletes, when its handler starts.
import { setTimeout } from 'node:timers/promises';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { createLogger } from '../../platform/observability/logger.ts';
import { ServiceRegistry } from '../../platform/rpc.ts';
import { InternalServer } from '../server.ts';

const registry = new ServiceRegistry();
registry.register(DeviceRegistryService, {
  getDevice: async ({ deviceId }) => {
    process.send!(deviceId);
    if (deviceId === 'slow') await setTimeout(10_000);
    return { deviceId };
  },
  deleteDevice: async ({ deviceId }) => {
    process.send!(deviceId);
    return {};
  },
});
const server = new InternalServer('a control secret', createLogger('silent'));
server.addServicesOf(registry);
process.on('disconnect', () => process.exit(0));
process.send!(await server.listen('127.0.0.1', 0));
