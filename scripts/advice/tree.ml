(* Builds and drops binary trees. *)
type tree = Leaf | Node of tree * tree
let rec make depth = if depth = 0 then Leaf else Node (make (depth - 1), make (depth - 1))
let rec size = function Leaf -> 1 | Node (left, right) -> size left + size right
let kept = make 20
let () = for _ = 1 to 400 do ignore (size (make 15)) done; print_int (size kept)
