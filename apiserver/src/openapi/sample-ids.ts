// Example ids, by field name.

/** Each has the version that the service generates: 7, or 5 where the name of a manifest determines the id. */
export const sampleIds = {
  device_id: '0199f3c2-7f1e-7c2a-9c55-0c9d8e1f2a3b',
  gateway_device_id: '0199f3c2-7b02-7d4f-8e6a-3f5a1c7d9e20',
  group_id: '0199f3c2-8a31-7d10-8c0e-5b7f2f6f1c44',
  user_id: '0199f3c2-93d7-7e02-a1b6-2d4c8f0e7a19',
  key_id: '0199f3c2-9c15-7a8b-b2d3-6e4f1a0c8d57',
  session_id: '0199f3c2-9f48-7c61-8d7e-0b3a5c9f2e14',
  customer_id: '0199f3c2-a4c9-7b64-9a3d-7e1f0c2b5d86',
  authority_id: '0199f3c2-ab07-7c19-8e52-3d6b9f1c0a45',
  asset_id: '0199f3c2-b57a-7f3e-8d21-4c9a6e0f3b72',
  entity_view_id: '0199f3c2-bd33-7e95-9b4c-1a6d8f2e0c73',
  alarm_id: '0199f3c2-c6e8-7d2b-8f5a-9c0e3b7a1d64',
  rule_id: '0199f3c2-ce51-7a97-a3c8-5d1f7b0e2a49',
  correlation_id: '0199f3c2-d7b4-7c08-9e6d-2f8a4c1b0e35',
  batch_id: '0199f3c2-e01d-7f5c-8a7b-6c3e9d0f1b28',
  profile_id: '6f1b6f9e-5c0b-5a55-9b3e-0d6c3c1f4a10',
  target_profile_id: '83d05e7b-4f16-5c92-a0e8-1b7d9c3f6e25',
  template_id: '2e8d4c7a-91f3-5b06-8c2d-7a5f0e1b3c94',
  package_id: '1c2f9a54-66a1-5d0c-8f0a-4f4b8b1f6f21',
  rollback_package_id: '9b7e3d15-2c48-5f6a-a1d0-8e4c6b2f7035',
  rollout_id: '4a9c1e62-7d3b-5e08-b6f4-0c8d5a2e9f17',
} as const;
