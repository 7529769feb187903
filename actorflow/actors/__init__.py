"""The running selves of a graph's nodes: ops, blobs and variables, and the frames that they work on.

Sequence of one frame, for ``[x] >> f >> [y] >> g`` with f on a worker lane::

    Engine          Dispatcher        f: OpActor      worker lane       frame            g: OpActor
      | x is fed: f.pending = 0           |               |               |                 |
      |--- (f, frame) -->|                |               |               |                 |
      |                  |--- fire ------>|-- submit ---->|               |                 |
      |                  |                |------- announce(fence) ------>|-- pending-1 --->| = 0: ready
      |                  |--- fire -------------------------------------------------------->| fence not passed:
      |                  |                |               |               |                 | pending = 1
      |                  |                |    done       |--- one wake-up of the loop ---->| pending = 0: ready
      |                  |--- fire -------------------------------------------------------->| runs
      |                  |                |               |               |<-- release -----| last reader: y's buffer
      |                  |                |               |               |                 | goes back to the pool

Actors belong to a program (a plan made ready to run) and keep nothing of a frame: counts, values and fences are in the
`Frame`, so that frames of one program overlap.
"""
