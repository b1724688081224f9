"""What is read of which stores: options, pinned stores, ranges, tasks, and the messages of a task.

Spark, export, replay and what else reads many stores in many processes adapt to it. How a range of a queue is
read is in `reading`; who starts the processes is not known here.
"""
