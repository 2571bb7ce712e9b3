;; Builds and drops binary trees.
(defun tree (depth) (if (zerop depth) nil (cons (tree (1- depth)) (tree (1- depth)))))
(defvar *kept* (tree 20))
(dotimes (i 400) (tree 17))
(print (length *kept*))
