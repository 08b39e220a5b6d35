;; Is there more to do?
(:computation-status :in-progress)
;; Written at, in seconds since 1900
(:timestamp 3488766071)
;; By
(:member-id "12.0")
;; Seconds until it is written again
(:update-interval 300)
;; Workers wanted beside those at work
(:slaves-needed 5)
;; A worker: program and shared libraries
(:slave-executable ("/opt/it's \"mine\"\\ping" ("/opt/libping.so")))
;; Its arguments
(:slave-arguments ("--mw-slave" "$(reboot)" ""))
