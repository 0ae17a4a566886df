// The custom resources: generated types, related names, and the locations of the YAML files.
export * from './constants.ts';
export * from './key-binding.ts';
export * from './manifests.ts';
export * from './sealed-key.ts';
export type * from './object-meta.ts';
export type * from './generated/shared.ts';
export type * from './generated/device-profile.ts';
export type * from './generated/provisioning-template.ts';
export type * from './generated/ota-package.ts';
export type * from './generated/ota-rollout.ts';
export type * from './generated/tenant.ts';
