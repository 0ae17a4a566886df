// Decides whether a gateway may connect a device as its child.

/** Maximum children of a gateway, and devices that it has created: it may disconnect those, but not delete them. */
export const maxChildren = 1000;

/** The gateway that asks. */
export interface AskingGateway {
  readonly deviceId: string;
  /** Null: it is the tenant's own, and serves all customers. */
  readonly customerId: string | null;
  /** Whether it is itself a child. */
  readonly isChild: boolean;
  /** How many children it has, counted up to the maximum. */
  readonly children: number;
  /** How many devices it has created that still exist, whoever they are connected through, counted up to the maximum. */
  readonly created: number;
}

/** The device with the hardware id, if there is one. */
export interface WantedDevice {
  readonly deviceId: string;
  /** Null: the tenant's own. */
  readonly customerId: string | null;
  /** Its gateway; null if it has none. */
  readonly gatewayDeviceId: string | null;
  /** Whether that gateway is alive. */
  readonly isGatewayAlive: boolean;
  /** Whether it has children of its own. */
  readonly hasChildren: boolean;
  /** Whether it has used a key of its own. */
  readonly usesOwnKey: boolean;
}

/** What to do; a refusal is FAILED_PRECONDITION with the reason. */
export type ConnectDecision =
  { readonly action: 'create' | 'adopt' | 'keep' } | { readonly action: 'refuse'; readonly reason: string };

const refuse = (reason: string): ConnectDecision => ({ action: 'refuse', reason });

/** Decides. */
export function decideConnect(gateway: AskingGateway, device: WantedDevice | undefined): ConnectDecision {
  if (gateway.isChild) return refuse('a device behind a gateway cannot be a gateway');
  if (device?.gatewayDeviceId === gateway.deviceId) return { action: 'keep' };
  if (device?.deviceId === gateway.deviceId) return refuse('hardware_id is that of the gateway itself');
  if (gateway.children >= maxChildren) return refuse(`a gateway has at most ${maxChildren} children`);
  if (!device) {
    return gateway.created >= maxChildren
      ? refuse(`a gateway creates at most ${maxChildren} devices: delete some that it has disconnected`)
      : { action: 'create' };
  }
  // Its gateway gets the commands of a child, and speaks for it.
  if (gateway.customerId !== null && device.customerId !== null && device.customerId !== gateway.customerId) {
    return refuse('the device belongs to another customer than the gateway');
  }
  if (device.gatewayDeviceId !== null) {
    return device.isGatewayAlive
      ? refuse('the device is connected through another gateway, which is not offline')
      : { action: 'adopt' };
  }
  if (device.hasChildren) return refuse('the device is a gateway itself');
  // Otherwise any device could take over the others of its tenant.
  if (device.usesOwnKey) {
    return refuse('the device connects with a key of its own: rotate its credentials before it goes behind a gateway');
  }
  return { action: 'adopt' };
}
