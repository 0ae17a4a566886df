-- Health of Kellet's resources for Argo CD: one check for all kinds. argocd-cm.yaml is generated from this file.
--
-- Progressing: not processed yet, or in progress. Suspended: waits for a person. Degraded: needs attention. The condition
-- Ready says whether a resource is in the state its manifest asks for; a rollout also has a phase and reasons for pauses.
local status = obj.status or {}

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

local function health(verdict, message)
  return { status = verdict, message = message }
end

local function text(condition)
  if condition.message ~= nil and condition.message ~= "" then
    return condition.message
  end
  return condition.reason
end

local ready = conditions.Ready
if ready == nil or (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return health("Progressing", "waiting for the operator")
end

if is("Ready", "True") then
  return health("Healthy", text(ready))
end

if obj.kind == "OtaRollout" and status.phase == "Paused" and is("Accepted", "True") then
  for _, pause in ipairs(status.pauseConditions or {}) do
    if pause.reason == "FailureThresholdExceeded" then
      return health("Degraded", text(ready))
    end
  end
  return health("Suspended", text(ready))
end

if obj.kind == "OtaRollout" and status.phase == "Completed" then
  return health("Degraded", text(ready))
end

if is("Stalled", "True") or is("Degraded", "True") then
  return health("Degraded", text(ready))
end

-- Resources that wait for a dependency are progressing; these need a person.
local needsPerson = { NoTenant = true, NamespaceConflict = true, SecretConflict = true, DeletionBlocked = true }
if needsPerson[ready.reason] then
  return health("Degraded", text(ready))
end

return health("Progressing", text(ready))
