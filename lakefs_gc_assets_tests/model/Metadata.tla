----------------------------- MODULE Metadata -----------------------------
(* Moving unneeded metadata: `lakefs-gc metadata move`, `restore` and `purge`, beside a commit that comes to need it.

   There are two files, a range and the metarange that names it, which nothing needs in the beginning. One commit may
   need both: it writes them again, or somebody commits the metarange by its id. Scopes and the rules that are taken
   out one by one (`Off`) are in scopes.py. *)
EXTENDS Naturals, TLC

CONSTANTS
  Acts,      \* what is started: "move", "purge", "restore"
  Starts,    \* how many of them, at most
  Begin, End,\* the abstract clock runs from Begin to End; both files are of time 0
  Age,       \* files that are younger stay
  Wait,      \* how long before the second survey the first one is, and the deletion before the third
  Keep,      \* quarantine_days
  Longest,   \* how long a commit is under way, at most
  Prompt,    \* TRUE: a commit that writes a file between the last look at it and its deletion ends within Wait
  Clients,   \* what clients do: "write", "name", "name moved", "name late"
  Crashes,   \* how many processes are killed, at most
  Stalls,    \* TRUE: a process may stand still until another one takes the lock
  Broken,    \* TRUE: the answer to a deletion may be lost, and the deletion be done later or never
  Failing,   \* what may fail: "survey", "restore"
  Off        \* the rules that are taken out

None == 100
Range == 1
Meta == 2
Files == {Range, Meta}
Processes == 1..Starts
On(rule) == rule \notin Off

VARIABLES
  now,
  place,             \* LastModified of each file where lakeFS put it, or None
  copies, moves,     \* files in quarantine; when a receipt says that each was moved last
  committed,         \* TRUE once the server knows the commit
  writer, began,     \* the commit under way: "idle", "range" or "both" are written, and since when
  process, lock,     \* processes; who has the lock, or 0
  late,              \* files whose deletion was asked for and may still be done
  crashes,
  wrong              \* TRUE once somebody deleted who had lost the lock before the last look at it

vars == <<now, place, copies, moves, committed, writer, began, process, lock, late, crashes, wrong>>
clients == <<committed, writer, began>>

---------------------------------------------------------------------------
(* The server *)

Young(f) == place[f] # None /\ now < place[f] + Age
Relied == IF committed THEN Files ELSE IF writer = "both" THEN Files ELSE IF writer = "range" THEN {Range} ELSE {}

WriteRange == /\ "write" \in Clients /\ writer = "idle" /\ ~committed
              /\ writer' = "range" /\ began' = now
              /\ place' = [place EXCEPT ![Range] = now]
              /\ UNCHANGED <<now, copies, moves, committed, process, lock, late, crashes, wrong>>

WriteMeta == /\ writer = "range"
             /\ writer' = "both"
             /\ place' = [place EXCEPT ![Meta] = now]
             /\ UNCHANGED <<now, copies, moves, committed, began, process, lock, late, crashes, wrong>>

Commit == /\ writer = "both"
          /\ writer' = "idle" /\ committed' = TRUE
          /\ UNCHANGED <<now, place, copies, moves, began, process, lock, late, crashes, wrong>>

Fail == /\ writer # "idle"
        /\ writer' = "idle"
        /\ UNCHANGED <<now, place, copies, moves, committed, began, process, lock, late, crashes, wrong>>

(* A server may know from its cache what lies in quarantine. *)
Purging == \E p \in Processes : process[p].at \in {"verify purge", "purge"}
CommitByName == /\ ~committed /\ writer = "idle"
                /\ \/ "name" \in Clients /\ \A f \in Files : place[f] # None
                   \/ "name moved" \in Clients /\ ~Purging /\ \A f \in Files : place[f] # None \/ f \in copies
                   \/ "name late" \in Clients /\ \A f \in Files : place[f] # None \/ f \in copies
                /\ committed' = TRUE
                /\ UNCHANGED <<now, place, copies, moves, writer, began, process, lock, late, crashes, wrong>>

---------------------------------------------------------------------------
(* Processes *)

(* Names that a survey finds: a metarange that a commit names is not among the young ones that it reads besides. *)
Named == IF committed THEN (IF On("ranges") THEN Files ELSE {Meta})
         ELSE IF On("young metaranges") /\ Young(Meta) THEN {Range} ELSE {}
Unneeded == {f \in Files : place[f] # None /\ (On("age") => ~Young(f))} \ Named

Restored(ids) == [f \in Files |-> IF f \in ids \cap copies /\ place[f] = None THEN now ELSE place[f]]
CopiesLeft(ids) == IF On("keep copies") THEN copies ELSE copies \ ids
Tries(ids) == IF "restore" \in Failing THEN SUBSET ids ELSE {ids}
PutBack(ids) == place' = Restored(ids) /\ copies' = CopiesLeft(ids)
Released(p) == IF lock = p THEN 0 ELSE lock

Start(p) == /\ process[p].at = "off" /\ (p > 1 => process[p - 1].at # "off")
            /\ \E act \in Acts :
                 process' = [process EXCEPT ![p].act = act, ![p].at = IF act = "move" THEN "first" ELSE "lock"]
            /\ UNCHANGED <<now, place, copies, moves, clients, lock, late, crashes, wrong>>

First(p) == /\ process[p].at = "first" /\ Unneeded # {}
            /\ process' = [process EXCEPT ![p].first = [f \in Files |-> IF f \in Unneeded THEN place[f] ELSE None],
                                          ![p].after = now, ![p].at = "lock"]
            /\ UNCHANGED <<now, place, copies, moves, clients, lock, late, crashes, wrong>>

(* A lock of a killed process expires. *)
Lock(p) == /\ process[p].at = "lock"
           /\ IF lock = 0 THEN TRUE ELSE Stalls \/ process[lock].at = "dead"
           /\ lock' = p
           /\ process' = [process EXCEPT ![p].at = CASE @ = "lock" /\ process[p].act = "move" -> "second"
                                                     [] process[p].act = "purge" -> "survey"
                                                     [] OTHER -> "restore"]
           /\ UNCHANGED <<now, place, copies, moves, clients, late, crashes, wrong>>

Waited(p) == ~On("wait") \/ now >= process[p].after + Wait

Second(p) == /\ process[p].at = "second" /\ Waited(p)
             /\ LET shown == {f \in Files : process[p].first[f] # None}
                    files == IF On("second survey") THEN {f \in shown \cap Unneeded : place[f] = process[p].first[f]}
                             ELSE shown
                IN /\ \E ids \in Tries(IF On("second survey") THEN Named ELSE {}) : PutBack(ids)
                   /\ process' = [process EXCEPT ![p].files = files, ![p].known = committed,
                                                 ![p].at = IF files = {} THEN "end" ELSE "copy"]
                   /\ lock' = IF files = {} THEN Released(p) ELSE lock
             /\ UNCHANGED <<now, moves, clients, late, crashes, wrong>>

Copy(p) == /\ process[p].at = "copy"
           /\ LET there == {f \in process[p].files : place[f] # None}
              IN /\ copies' = IF On("copy") THEN copies \cup there ELSE copies
                 /\ moves' = [f \in Files |-> IF f \in there THEN now ELSE moves[f]]
                 /\ process' = [process EXCEPT ![p].files = there, ![p].at = "verify"]
           /\ UNCHANGED <<now, place, clients, lock, late, crashes, wrong>>

Verify(p) == /\ process[p].at = "verify"
             /\ process' = [process EXCEPT ![p].held = (lock = p),
                                           ![p].at = IF lock = p \/ ~On("verify") THEN "look" ELSE "end"]
             /\ UNCHANGED <<now, place, copies, moves, clients, lock, late, crashes, wrong>>

Look(p) == /\ process[p].at = "look"
           /\ process' = [process EXCEPT ![p].looked = place, ![p].at = "delete",
                                         ![p].same = IF ~On("look") THEN @
                                                     ELSE {f \in process[p].files : place[f] = process[p].first[f]}]
           /\ UNCHANGED <<now, place, copies, moves, clients, lock, late, crashes, wrong>>

Same(p) == IF On("look") THEN process[p].same ELSE process[p].files
Raced(p) == {f \in Same(p) : place[f] # None /\ place[f] # process[p].looked[f]}

Delete(p) == /\ process[p].at = "delete"
             /\ place' = [f \in Files |-> IF f \in Same(p) THEN None ELSE place[f]]
             /\ process' = [process EXCEPT ![p].raced = Raced(p), ![p].after = now, ![p].at = "third"]
             /\ wrong' = (wrong \/ (~process[p].held /\ Same(p) # {}))
             /\ UNCHANGED <<now, copies, moves, clients, lock, late, crashes>>

BreakOff(p) == /\ Broken /\ process[p].at = "delete"
               /\ late' = Same(p)
               /\ process' = [process EXCEPT ![p].at = "fail"]
               /\ UNCHANGED <<now, place, copies, moves, clients, lock, crashes, wrong>>

DeleteLate == /\ late # {}
              /\ place' = [f \in Files |-> IF f \in late THEN None ELSE place[f]]
              /\ late' = {}
              /\ UNCHANGED <<now, copies, moves, clients, process, lock, crashes, wrong>>

DeleteNever == late # {} /\ late' = {} /\ UNCHANGED <<now, place, copies, moves, clients, process, lock, crashes, wrong>>

Third(p) == /\ process[p].at = "third" /\ Waited(p)
            /\ \E ids \in Tries(IF On("third survey") THEN Named ELSE {}) : PutBack(ids)
            /\ process' = [process EXCEPT ![p].at = "end"]
            /\ lock' = Released(p)
            /\ UNCHANGED <<now, moves, clients, late, crashes, wrong>>

FailThird(p) == /\ "survey" \in Failing /\ process[p].at = "third"
                /\ process' = [process EXCEPT ![p].at = "fail"]
                /\ UNCHANGED <<now, place, copies, moves, clients, lock, late, crashes, wrong>>

PutAllBack(p) == /\ process[p].at = "fail"
                 /\ \E ids \in Tries(process[p].files) : PutBack(IF lock = p /\ On("after a failure") THEN ids ELSE {})
                 /\ process' = [process EXCEPT ![p].at = "end"]
                 /\ lock' = Released(p)
                 /\ UNCHANGED <<now, moves, clients, late, crashes, wrong>>

Restore(p) == /\ process[p].at = "restore"
              /\ \E ids \in Tries(copies) : PutBack(IF lock = p THEN ids ELSE {})
              /\ process' = [process EXCEPT ![p].at = "end"]
              /\ lock' = Released(p)
              /\ UNCHANGED <<now, moves, clients, late, crashes, wrong>>

Survey(p) == /\ process[p].at = "survey"
             /\ \E ids \in Tries(IF On("purge puts back") THEN Named ELSE {}) :
                  LET due == {f \in copies : moves[f] # None /\ (On("purge age") => moves[f] + Keep <= now)}
                      files == {f \in due : On("purge looks") => f \notin Named \/ Restored(ids)[f] # None}
                  IN /\ PutBack(ids)
                     /\ process' = [process EXCEPT ![p].files = files, ![p].known = committed, ![p].after = now,
                                                   ![p].at = "verify purge"]
             /\ UNCHANGED <<now, moves, clients, lock, late, crashes, wrong>>

(* A survey is believed for a short time. *)
VerifyPurge(p) == /\ process[p].at = "verify purge"
                  /\ LET goes == (lock = p \/ ~On("verify purge")) /\ process[p].after = now
                     IN /\ process' = [process EXCEPT ![p].held = (lock = p), ![p].at = IF goes THEN "purge" ELSE "end"]
                        /\ lock' = IF goes THEN lock ELSE Released(p)
                  /\ UNCHANGED <<now, place, copies, moves, clients, late, crashes, wrong>>

Purge(p) == /\ process[p].at = "purge"
            /\ copies' = copies \ process[p].files
            /\ process' = [process EXCEPT ![p].at = "end"]
            /\ lock' = Released(p)
            /\ wrong' = (wrong \/ (~process[p].held /\ process[p].files # {}))
            /\ UNCHANGED <<now, place, moves, clients, late, crashes>>

Crash(p) == /\ crashes < Crashes /\ process[p].at \notin {"off", "end", "dead"}
            /\ process' = [process EXCEPT ![p].at = "dead"]
            /\ crashes' = crashes + 1
            /\ UNCHANGED <<now, place, copies, moves, clients, lock, late, wrong>>

---------------------------------------------------------------------------
(* Time. A deletion whose answer was lost is done soon or never, a batch is deleted soon after the last look at it, and
   a commit ends in the end. *)

Hidden(p) == \/ writer = "range" /\ Range \in process[p].raced /\ place[Range] = None
             \/ writer = "both" /\ Meta \in process[p].raced /\ place[Meta] = None

Tick == /\ now < End /\ late = {}
        /\ \A p \in Processes : process[p].at \notin {"verify", "look", "delete", "purge"}
        /\ writer # "idle" => now + 1 <= began + Longest
        /\ Prompt => \A p \in Processes : process[p].at = "third" => now + 1 < process[p].after + Wait \/ ~Hidden(p)
        /\ now' = now + 1
        /\ UNCHANGED <<place, copies, moves, clients, process, lock, late, crashes, wrong>>

Init == /\ now = Begin
        /\ place = [f \in Files |-> 0]
        /\ copies = {} /\ moves = [f \in Files |-> None]
        /\ committed = FALSE /\ writer = "idle" /\ began = 0
        /\ process = [p \in Processes |-> [act |-> "", at |-> "off", first |-> [f \in Files |-> None], files |-> {},
             looked |-> [f \in Files |-> None], same |-> {}, raced |-> {}, after |-> 0, known |-> FALSE, held |-> FALSE]]
        /\ lock = 0 /\ late = {} /\ crashes = 0 /\ wrong = FALSE

Next == \/ WriteRange \/ WriteMeta \/ Commit \/ Fail \/ CommitByName \/ DeleteLate \/ DeleteNever \/ Tick
        \/ \E p \in Processes :
             \/ Start(p) \/ First(p) \/ Lock(p) \/ Second(p) \/ Copy(p) \/ Verify(p) \/ Look(p) \/ Delete(p) \/ BreakOff(p)
             \/ Third(p) \/ FailThird(p) \/ PutAllBack(p) \/ Restore(p) \/ Survey(p) \/ VerifyPurge(p) \/ Purge(p)
             \/ Crash(p)

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Invariants *)

(* What a commit needs, or one under way has written, is at its place or in quarantine. *)
NoneIsGoneForGood == \A f \in Relied : place[f] # None \/ f \in copies

(* What a commit needs is at its place once a move has ended. *)
CommitsAreWhole == \/ ~committed
                   \/ \E p \in Processes : process[p].at \in {"third", "fail"}
                   \/ \A f \in Files : place[f] # None

(* What a commit needed before a survey under the lock stays, or is back after it. *)
WhatWasCommittedStays == \A p \in Processes : process[p].known => \A f \in Files : place[f] # None

OnlyLockHolderDeletesMetadata == ~wrong

(* Every state counts. *)
Interesting == TRUE

(* Denied, and so to be violated: something happens at all. *)
NothingIsMoved == \A f \in Files : place[f] # None
NothingIsPurged == \A p \in Processes : ~(process[p].at = "purge" /\ process[p].files # {})
NothingComesBack == \A p \in Processes : ~(process[p].at = "end" /\ process[p].act = "restore" /\ copies # {})
============================================================================
