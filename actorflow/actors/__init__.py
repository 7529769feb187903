"""The running selves of a graph's nodes: ops, blobs and variables, and the frames that they work on.

Sequence of one frame, for ``[x] >> f >> [y] >> g >> [z] >> h`` with f and g on a worker lane, h an async function::

    Engine          Dispatcher        f: OpActor      lane's thread     frame            loop
      | x is fed: f waits for nothing   |               |               |                 |
      |--- (f, frame) -->|              |               |               |                 |
      |                  |--- fire ---->|-- hand_over ->| f.compute     |                 |
      |                  |              |               |-- release --->| last reader: x's buffer
      |                  |              |               |               | goes back to the pool
      |                  |              |               |-- count g --->| = 0: ready, on this lane
      |                  |              |               | g.compute     |                 |
      |                  |              |               |-- count h --->| = 0: ready, and the loop's
      |                  |<-- (h, frame), one wake-up of the loop -------|---------------->|
      |                  |              |               | the shift ends|---------------->| its fence has passed
      |                  |--- fire ---------------------------------------------------->  h: a task

Actors belong to a program (a plan made ready to run) and keep nothing of a frame: counts, values and fences are in the
`Frame`, so that frames of one program overlap.
"""
