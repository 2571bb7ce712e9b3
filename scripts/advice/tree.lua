-- Builds and drops binary trees.
local function tree(depth)
    if depth == 0 then return {} end
    return { tree(depth - 1), tree(depth - 1) }
end
local kept = tree(18)
local made = 0
for _ = 1, 400 do made = made + #tree(14) end
print(made, #kept)
